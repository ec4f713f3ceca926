"""Requests that nobody waits for, so that the first client does not pay for compilation and first allocations."""

from __future__ import annotations

from engine.build import build_scheduler
from engine.engine_core import EngineCore
from engine.request import Request
from engine.resolve import ResolvedConfig
from engine.sampling_params import SamplingParams

_NUM_REQUESTS = 8
_NUM_TOKENS = 12
_LONGEST_PROMPT = 256


def warm_up(core: EngineCore, resolved: ResolvedConfig) -> EngineCore:
    """Prefills of several lengths and some decodes; returns a core with the same executor and an untouched scheduler.

    Raises what a step raises: an engine that cannot run is found out before it is served.
    """
    scheduler = resolved.config.scheduler
    room = min(resolved.max_model_len, (resolved.num_blocks - 1) * resolved.config.cache.block_size)
    num_output = max(min(_NUM_TOKENS, room // 2), 1)
    longest = max(min(room - num_output - 1, scheduler.max_num_batched_tokens, _LONGEST_PROMPT), 1)
    for number in range(min(_NUM_REQUESTS, scheduler.max_num_seqs)):
        length = max(longest >> number, 1)
        tokens = [(number * 7919 + position * 31) % resolved.spec.vocab_size for position in range(length)]
        core.add_request(Request(f"warm-up-{number}", tokens, SamplingParams(max_tokens=num_output, ignore_eos=True)))
    while core.scheduler.has_requests():
        core.step()
    return EngineCore(build_scheduler(resolved), core.executor, core.clock)

"""Beam search over the paged cache: beams share blocks by reference count and copy a partly filled one on write.

All beams of a search move in lockstep. In each step the `width` best continuations of all beams are kept: the first of
a beam goes on in its own request, further ones are forked from it, and a beam without any is dropped. A beam whose
turn comes early (token budget, preemption) gets no token until the others have caught up; until then it has nothing to
compute, so the scheduler passes it over.

Scores are sums of log probabilities; hypotheses are compared by score / length ** length_penalty, where the length
counts output tokens and an end-of-sequence token is not kept. As in vLLM a search runs to `max_tokens` unless every
beam has ended before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.core.async_scheduler import AsyncScheduler
from engine.core.scheduler import Scheduler
from engine.errors import ConfigError, RequestRefused
from engine.outputs import ModelRunnerOutput, SchedulerOutput
from engine.request import Request, RequestStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One finished beam."""

    token_ids: tuple[int, ...]
    """Output tokens, end-of-sequence excluded."""
    score: float
    """Sum of log probabilities, that of the end included."""
    finish_reason: str
    """`stop` or `length`."""

    def ranked(self, length_penalty: float) -> float:
        """The figure that hypotheses are compared by."""
        return self.score / float(max(len(self.token_ids), 1) ** length_penalty)


@dataclass(slots=True)
class _Search:
    width: int
    length_penalty: float
    eos_token_id: int | None
    beams: dict[str, Request]
    scores: dict[str, float]
    pending: dict[str, Mapping[int, float]] = field(default_factory=dict)
    hypotheses: list[Hypothesis] = field(default_factory=list)
    num_forks: int = 0


class BeamSearch:
    """All beam searches of one engine. Synchronous scheduling only."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._searches: dict[str, _Search] = {}  # by the id of the first beam
        self._search_of: dict[str, _Search] = {}  # by the id of any live beam

    def start(self, request: Request, *, width: int, length_penalty: float = 1.0) -> Request:
        """The first beam of a search for `request`, to be added in its place.

        Raises `RequestRefused` when all beams at full length do not fit at once: a search could then wait for itself.
        """
        if isinstance(self._scheduler, AsyncScheduler):
            raise ConfigError("async_scheduling: beam search needs the synchronous mode. Set it to false")
        blocks, seats = self._scheduler.blocks, self._scheduler.config.max_num_seqs
        longest = min(request.num_prompt_tokens + request.max_tokens, blocks.max_model_len)
        needed, usable = width * blocks.num_blocks_for(longest), blocks.pool.num_usable_blocks
        if width < 1 or width > seats:
            raise RequestRefused(f"beam width: must be from 1 to max_num_seqs ({seats}) (got {width})")
        if needed > usable:
            raise RequestRefused(
                f"request {request.request_id!r}: {width} beams of {longest} tokens need {needed} blocks of "
                f"{blocks.block_size}, but the pool has {usable}. Use fewer beams or fewer tokens"
            )
        beam = Request(
            request.request_id,
            request.all_token_ids,
            replace(request.sampling, n=1, num_logprobs=2 * width, ignore_eos=True, temperature=0.0),
            arrival_time_s=request.arrival_time_s,
            priority=request.priority,
            cache_salt=request.cache_salt,
        )
        search = _Search(
            width=width,
            length_penalty=length_penalty,
            eos_token_id=request.eos_token_id,
            beams={beam.request_id: beam},
            scores={beam.request_id: 0.0},
        )
        self._searches[beam.request_id] = self._search_of[beam.request_id] = search
        return beam

    def take(self, request_id: str) -> list[Hypothesis]:
        """The hypotheses of a finished search, best first, at most `width`."""
        search = self._searches.pop(request_id)
        ranked = sorted(search.hypotheses, key=lambda h: -h.ranked(search.length_penalty))
        return ranked[: search.width]

    def after_plan(self, plan: SchedulerOutput) -> None:
        """Nothing: beams are forked when their scores are known."""

    def after_execute(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> ModelRunnerOutput:
        """Take the beams' tokens out of the output; where a search has all its scores, its beams go on."""
        if not self._search_of:
            return output
        tokens = dict(output.sampled_token_ids)
        ready: list[_Search] = []
        for request in plan.requests:
            search = self._search_of.get(request.request_id)
            if search is None or tokens.pop(request.request_id, None) is None:
                continue
            search.pending[request.request_id] = output.logprobs[request.request_id]
            if len(search.pending) == len(search.beams):
                ready.append(search)
        for search in ready:
            self._advance(search)
        return output._replace(sampled_token_ids=tokens)

    def forget(self, request_id: str) -> list[str]:
        search = self._searches.pop(request_id, None)
        if search is None:
            return []
        return [beam_id for beam_id in search.beams if self._search_of.pop(beam_id, None) is not None]

    def _advance(self, search: _Search) -> None:
        """One step of a search."""
        candidates = sorted(
            (
                (search.scores[beam_id] + logprob, order, token, beam_id)
                for order, beam_id in enumerate(search.beams)
                for token, logprob in search.pending[beam_id].items()
            ),
            key=lambda c: (-c[0], c[1], c[2]),
        )
        search.pending = {}
        first = next(iter(search.beams.values()))
        is_last = first.num_tokens + 1 >= first.length_limit
        chosen: list[tuple[str, int, float]] = []
        for score, _, token, beam_id in candidates:
            if len(chosen) == search.width:
                break
            if token == search.eos_token_id:
                outputs = tuple(search.beams[beam_id].output_token_ids)
                search.hypotheses.append(Hypothesis(token_ids=outputs, score=score, finish_reason="stop"))
            else:
                chosen.append((beam_id, token, score))
        if is_last:
            for beam_id, token, score in chosen:
                outputs = (*search.beams[beam_id].output_token_ids, token)
                search.hypotheses.append(Hypothesis(token_ids=outputs, score=score, finish_reason="length"))
            chosen = []
        self._continue(search, chosen)

    def _continue(self, search: _Search, chosen: list[tuple[str, int, float]]) -> None:
        beams: dict[str, Request] = {}
        scores: dict[str, float] = {}
        tokens: dict[str, int] = {}
        for beam_id, token, score in chosen:
            request = search.beams[beam_id]
            if beam_id in tokens:
                request = self._fork(search, request, token)
            else:
                tokens[beam_id] = token
            beams[request.request_id] = request
            scores[request.request_id] = score
        dropped = [beam_id for beam_id in search.beams if beam_id not in beams]
        for beam_id in dropped:
            del self._search_of[beam_id]
        self._scheduler.finish_requests(dropped, RequestStatus.FINISHED_ABORTED)
        # After the forks, which copied the tokens so far. Beams of earlier steps are not in this step's plan.
        for beam_id, token in tokens.items():
            self._scheduler.extend(search.beams[beam_id], token)
        search.beams, search.scores = beams, scores

    def _fork(self, search: _Search, parent: Request, token: int) -> Request:
        search.num_forks += 1
        root = parent.request_id.partition("~")[0]
        child = Request(
            f"{root}~{search.num_forks}",
            parent.all_token_ids,
            parent.sampling,
            arrival_time_s=parent.arrival_time_s,
            priority=parent.priority,
            cache_salt=parent.cache_salt,
        )
        # The outputs so far are known tokens, but the limit on new ones counts from the prompt.
        child.num_prompt_tokens = parent.num_prompt_tokens
        child.all_token_ids.append(token)
        child.num_tokens += 1
        self._scheduler.fork(parent, child, parent.num_computed_tokens)
        self._search_of[child.request_id] = search
        return child

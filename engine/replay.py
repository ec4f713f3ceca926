"""Replay a recorded scheduler case: `python -m engine.replay CASE.json[.gz] [-o OUT.json]`.

A case is a configuration and requests with the tokens that a model answered. It is driven through our scheduler
without a model, and the same step records are written as the recording holds. The front's capacity gate is left out,
so that recorded stalls are reproduced.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

from engine.config import SchedulerConfig
from engine.core.async_scheduler import AsyncScheduler
from engine.core.block_manager import BlockManager
from engine.core.scheduler import Scheduler, StepResult
from engine.outputs import ModelRunnerOutput, SchedulerOutput
from engine.request import Request, RequestStatus
from engine.sampling_params import SamplingParams

EOS_TOKEN_ID = 2
STALL_STEPS = 4
"""A request that no step changes for this many steps in a row is stalled."""
FRUITLESS_STEPS = 100_000
"""So many steps without a token are a stall too: in a pool too small, requests may preempt each other for ever."""


def load_case(path: Path) -> dict[str, Any]:
    """The case of a file: either a bare case or a recorded log with its case inside."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as stream:
        document = json.load(stream)
    case: dict[str, Any] = document.get("case", document)
    return case


def build_scheduler(config: dict[str, Any]) -> Scheduler:
    """A scheduler and block manager from the configuration of a case."""
    blocks = BlockManager(
        num_blocks=config["num_blocks"],
        block_size=config["block_size"],
        max_model_len=config["max_model_len"],
        enable_prefix_caching=config.get("enable_prefix_caching", True),
        watermark=config.get("watermark", 0.0),
    )
    is_async = bool(config.get("async_scheduling", False))
    names = ("enable_chunked_prefill", "long_prefill_token_threshold", "long_prefill_token_threshold_adaptive",
             "scheduler_reserve_full_isl", "watermark", "max_num_active_seqs")  # fmt: skip
    scheduler_config = SchedulerConfig(
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        scheduling_policy=config.get("policy", "fcfs"),
        async_scheduling=is_async,
        **{name: config[name] for name in names if name in config},
    )
    return (AsyncScheduler if is_async else Scheduler)(scheduler_config, blocks)


class Replay:
    """Drives one case and records it."""

    def __init__(self, case: dict[str, Any]) -> None:
        self._case = case
        self._config = case["config"]
        self.scheduler = build_scheduler(self._config)
        self._answers: dict[str, list[int]] = {r["id"]: r["output_token_ids"] for r in case["requests"]}
        self._num_answered = dict.fromkeys(self._answers, 0)
        self._requests: dict[str, Request] = {}
        self._summaries: dict[str, dict[str, Any]] = {}
        self._hits: dict[str, int] = {}
        self._in_flight: deque[tuple[int, SchedulerOutput, ModelRunnerOutput]] = deque()
        self._depth = 2 if self._config.get("async_scheduling") else 1
        self._max_running = 0
        self.steps: list[dict[str, Any]] = []

    def run(self, *, check: bool = False) -> dict[str, Any]:
        """The whole log. `check`: prove the scheduler's invariants after every action."""
        arrivals, rejected = self._arrivals()
        aborts: dict[int, list[str]] = {}
        for request in self._case["requests"]:
            if request.get("abort_step") is not None:
                aborts.setdefault(request["abort_step"], []).append(request["id"])
        t, idle_steps, fruitless_steps = 0, 0, 0
        stalled: list[str] = []
        while True:
            if not self.scheduler.has_unfinished() and not self._in_flight:
                later = [step for step in arrivals if step >= t]
                if not later:
                    break
                t = max(t, min(later))
            added = arrivals.pop(t, [])
            for raw in added:
                self._add(raw)
            aborted = [i for i in aborts.pop(t, []) if self.scheduler.find_request(i) is not None]
            for request_id in aborted:
                self.scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)
                self._finish(request_id, t, "abort")
            step = self._step(t, [raw["id"] for raw in added], aborted)
            if check:
                self.scheduler.check_integrity()
            changed = bool(added or aborted or step["sched"] or step["preempt"] or step["out"])
            idle_steps = 0 if changed else idle_steps + 1
            fruitless_steps = 0 if added or aborted or step["out"] else fruitless_steps + 1
            t += 1
            if idle_steps >= STALL_STEPS or fruitless_steps >= FRUITLESS_STEPS:
                stalled = [r.request_id for r in (*self.scheduler.running, *self.scheduler.waiting)]
                later = [step for step in arrivals if step >= t]
                if not later:
                    break
                t, idle_steps, fruitless_steps = max(t, min(later)), 0, 0
        return self._log(rejected, stalled)

    def _arrivals(self) -> tuple[dict[int, list[dict[str, Any]]], dict[str, str]]:
        arrivals: dict[int, list[dict[str, Any]]] = {}
        rejected: dict[str, str] = {}
        for raw in self._case["requests"]:
            length, limit = len(raw["prompt_token_ids"]), self._config["max_model_len"]
            if length == 0 or length >= limit:
                rejected[raw["id"]] = f"a prompt must have 1 to {limit - 1} tokens (max_model_len - 1), got {length}"
            else:
                arrivals.setdefault(raw["arrival_step"], []).append(raw)
        return arrivals, rejected

    def _add(self, raw: dict[str, Any]) -> None:
        request = Request(
            raw["id"],
            raw["prompt_token_ids"],
            SamplingParams(max_tokens=raw["output_len"]),
            arrival_time_s=raw.get("arrival_time", 0.0),
            priority=raw.get("priority", 0),
            eos_token_id=EOS_TOKEN_ID,
        )
        self._requests[raw["id"]] = request
        self.scheduler.add_request(request)

    def _step(self, t: int, added: list[str], aborted: list[str]) -> dict[str, Any]:
        pool = self.scheduler.blocks.pool
        tables = {r.request_id: list(r.block_ids) for r in self.scheduler.running}
        preemptions = {i: r.num_preemptions for i, r in self._requests.items()}
        pool.evictions.clear()
        record: dict[str, Any] = {"t": t, "add": added, "abort": aborted}
        waits = False  # asynchronous: the first step after a pause leaves its output in flight
        if self._depth == 1 or self.scheduler.has_requests():
            plan = self.scheduler.schedule()
            self._in_flight.append((t, plan, self._answer(plan)))
            waits = len(self._in_flight) < self._depth and (bool(plan.requests) or self.scheduler.has_requests())
            record |= self._plan_record(plan, tables, preemptions, t)
            record |= {"tok": plan.num_scheduled_tokens, "preempt": list(plan.preempted_request_ids)}
        else:
            record |= {"sched": [], "blk": {}, "hitblk": {}, "tok": 0, "preempt": []}
        record |= {"evict": list(pool.evictions), "free_s": pool.num_free}
        result = StepResult([], [], [])
        processed: int | None = None
        if not waits:
            processed, oldest, answer = self._in_flight.popleft()
            result = self.scheduler.update(oldest, answer)
        for request in result.finished:
            self._finish(request.request_id, t, request.status.finish_reason)
        self._max_running = max(self._max_running, len(self.scheduler.running))
        record |= {
            "proc": processed,
            "out": [[r.request_id, token] for r, token in zip(result.requests, result.token_ids, strict=True)],
            "fin": [[r.request_id, r.status.finish_reason] for r in result.finished],
            "free": pool.num_free,
            "cached": pool.index.num_distinct(),
            "run": [r.request_id for r in self.scheduler.running],
            "wait": [r.request_id for r in self.scheduler.waiting],
        }
        self.steps.append(record)
        return record

    def _plan_record(
        self, plan: SchedulerOutput, tables: dict[str, list[int]], preemptions: dict[str, int], t: int
    ) -> dict[str, Any]:
        sched, new_blocks, hit_blocks = [], {}, {}
        for request, num_new, computed in zip(
            plan.requests, plan.num_new_tokens, plan.num_computed_tokens, strict=True
        ):
            name = request.request_id
            before = tables.get(name)
            summary = self._summaries.setdefault(name, {"first_step": t, "finish_step": None, "reason": None})
            if before is not None and preemptions[name] == request.num_preemptions:
                kind, hit, held = "run", 0, len(before)
            else:
                kind = "res" if request.num_preemptions else "new"
                hit, held = computed, computed // self.scheduler.blocks.block_size
                summary["hit_tokens"] = summary.get("hit_tokens", 0) + hit
                if held:
                    hit_blocks[name] = request.block_ids[:held]
            taken = request.block_ids[held:]
            if taken:
                new_blocks[name] = list(taken)
            sched.append([name, num_new, computed, len(taken), hit, kind])
        return {"sched": sched, "blk": new_blocks, "hitblk": hit_blocks}

    def _answer(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """The recorded token of every request whose known tokens are all computed after this step."""
        sampled = {}
        for i, request in enumerate(plan.requests):
            if i in plan.unsampled:
                continue
            name = request.request_id
            answers, position = self._answers[name], self._num_answered[name]
            # In asynchronous mode one token past the recorded end may be computed and thrown away.
            sampled[name] = answers[position] if position < len(answers) else EOS_TOKEN_ID
            self._num_answered[name] = position + 1
        return ModelRunnerOutput(sampled_token_ids=sampled)

    def _finish(self, name: str, t: int, reason: str | None) -> None:
        summary = self._summaries.setdefault(name, {"first_step": None, "finish_step": None, "reason": None})
        summary |= {"finish_step": t, "reason": reason}

    def _log(self, rejected: dict[str, str], stalled: list[str]) -> dict[str, Any]:
        pool = self.scheduler.blocks.pool
        free_queue = pool.free_queue()
        for name, request in self._requests.items():
            summary = self._summaries.setdefault(name, {"first_step": None, "finish_step": None, "reason": None})
            summary |= {"preemptions": request.num_preemptions, "hit_tokens": summary.get("hit_tokens", 0)}
        return {
            "format": 1,
            "oracle": "llm-serving-workbench engine",
            "case": self._case,
            "rejected": rejected,
            "stalled": stalled,
            "steps": self.steps,
            "final": {
                "free_queue": free_queue,
                "cached_free": [block for block in free_queue if pool.is_cached(block)],
            },
            "requests": self._summaries,
            "stats": {
                "steps": len(self.steps),
                "requests": len(self._requests),
                "scheduled_tokens": sum(step["tok"] for step in self.steps),
                "preemptions": self.scheduler.num_preemptions,
                "hit_tokens": sum(s.get("hit_tokens", 0) for s in self._summaries.values()),
                "evictions": sum(len(step["evict"]) for step in self.steps),
                "max_running": self._max_running,
            },
        }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m engine.replay", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("case", type=Path, help="case or recorded log, JSON, plain or .gz")
    parser.add_argument("-o", "--out", type=Path, help="where to write the log; standard output if not given")
    args = parser.parse_args(argv)
    try:
        case = load_case(args.case)
        config, requests = case["config"], case["requests"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"{args.case}: not a scheduler case ({type(error).__name__}: {error})", file=sys.stderr)
        return 2
    del config, requests
    text = json.dumps(Replay(case).run())
    if args.out is None:
        print(text)
    else:
        args.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

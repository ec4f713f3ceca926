"""The scheduler: in each step, how many tokens of which request are computed. Decides exactly as vLLM V1 does.

There is no prefill phase and no decode phase: a step brings each request's `num_computed_tokens` closer to its
`num_tokens`, running requests first, then admissions from the head of the waiting queue, within one token budget.
Policies (queue order, preemption, admission) are objects; this file holds only the rules that they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.config import SchedulerConfig
from engine.core.admission import AdmissionPolicy
from engine.core.block_manager import BlockManager
from engine.core.fingerprint import DecisionFingerprint
from engine.core.foresight import Foresight
from engine.core.offers import Offers
from engine.core.plan import Plan
from engine.core.preemption import PreemptionPolicy, RecomputePreemption
from engine.core.request_queue import QUEUES, RequestQueue
from engine.core.steady import Progress, SteadyDecodes
from engine.errors import IntegrityError, RequestRefused
from engine.outputs import ModelRunnerOutput, SchedulerOutput
from engine.request import Request, RequestStatus
from engine.stats import AdmissionStop, PrefixCacheStats


class StepResult(NamedTuple):
    """What one step's output changed."""

    requests: list[Request]
    """Requests that got a token, in the order of the plan."""
    token_ids: list[int]
    """Their tokens."""
    finished: list[Request]


class Scheduler:
    """Synchronous scheduling: the output of a step is processed before the next step is planned.

    Owns all unfinished requests. `running` is in order of admission; `waiting` in the order of its policy.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        *,
        preemption: PreemptionPolicy | None = None,
        admission: Sequence[AdmissionPolicy] = (),
    ) -> None:
        self.config = config
        self.blocks = blocks
        self.running: list[Request] = []
        self.waiting: RequestQueue = QUEUES[config.scheduling_policy]()
        self.admission = tuple(admission)
        self.suspend_by(preemption or RecomputePreemption(blocks))
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.fingerprint = DecisionFingerprint()
        self._requests: dict[str, Request] = {}
        self._held: list[Request] = []  # finished, but an admission policy keeps their blocks
        self._most_computed: dict[str, int] = {}  # of preempted requests: tokens that had been computed before
        self._finished_ids: list[str] = []
        self._progress = Progress()
        self._last_stop = AdmissionStop.NO_WAITING
        self._cap = min(config.max_num_seqs, config.max_num_active_seqs or config.max_num_seqs)
        self._num_admitted = 0
        self._foresight: Foresight | None = None

    # -- questions ----------------------------------------------------------------------------------------------------

    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def has_requests(self) -> bool:
        """Unfinished ones, or finished ones that the executor has not been told of: one more, empty, step."""
        return bool(self._requests or self._finished_ids)

    @property
    def num_unfinished(self) -> int:
        return len(self._requests)

    def find_request(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def prefix_cache_stats(self) -> PrefixCacheStats:
        return self._offers.prefix_cache_stats()

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless every invariant of requests, tables and pool holds."""
        self.settle()
        waiting = list(self.waiting)
        if {id(r) for r in (*self.running, *waiting)} != {id(r) for r in self._requests.values()}:
            raise IntegrityError("running and waiting requests differ from those that are unfinished")
        if len(self.running) > self._cap:
            raise IntegrityError(f"{len(self.running)} requests run, but the cap is {self._cap}")
        for request in waiting:
            if request.block_ids:
                raise IntegrityError(f"{request!r} waits, but holds blocks")
        self.blocks.check_integrity((*self.running, *waiting, *self._held))

    # -- commands -----------------------------------------------------------------------------------------------------

    def foresee_decodes(self, token: int) -> None:
        """Let requests whose decoding is foreseeable take part in steps without being looked at (`core.steady`): for
        executors that answer `token` whenever a request is left out of their output. No decision changes by it."""
        self._foresight = Foresight(
            self.blocks,
            self.running,
            self._progress,
            token,
            num_pending=self._num_pending,
            enter=self._plan,
            is_async=self._plans_ahead,
        )

    def suspend_by(self, preemption: PreemptionPolicy) -> None:
        """How running requests are suspended and come back; before the first request."""
        self.preemption = preemption
        self._offers = Offers(self.config, self.blocks, preemption, self.admission)

    def settle(self) -> None:
        """Make the counters of every request true, those of steady decodes too."""
        if self._foresight is not None:
            self._foresight.settle()

    def take_arrears(self) -> list[tuple[Request, int]]:
        """(request, number of tokens) of those that were steady: one from each of the last steps whose output was
        taken before the plan made last."""
        return [] if self._foresight is None else self._foresight.take_arrears()

    def take_news(self) -> list[tuple[Request, int]]:
        """As `take_arrears`, of steady decodes too."""
        return [] if self._foresight is None else self._foresight.take_news()

    def add_request(self, request: Request) -> None:
        """Append a new request to the waiting queue."""
        if request.request_id in self._requests:
            raise RequestRefused(f"request id {request.request_id!r} is in use: choose another")
        request.length_limit = min(request.num_prompt_tokens + request.max_tokens, self.blocks.max_model_len)
        self._requests[request.request_id] = request
        self.fingerprint.enter(request)
        self.waiting.add(request)

    def fork(self, parent: Request, child: Request, num_tokens: int) -> None:
        """Start `child` with the KV of the first `num_tokens` tokens of `parent`, a running request.

        The child joins `running` if a seat is free; otherwise it waits, and finds what it shared in the prefix cache.
        """
        self.add_request(child)
        if len(self.running) >= self._cap:
            return
        self.waiting.remove(child)
        self.blocks.fork(parent, child, num_tokens)
        child.num_cached_tokens = num_tokens
        child.status = RequestStatus.RUNNING
        parent.shares_tail = child.shares_tail = True
        parent.decode_until = child.decode_until = 0
        self._enter_running(child)

    def extend(self, request: Request, token: int) -> None:
        """Give an unfinished request a token chosen outside of `update` (beam search); it does not end by it."""
        request.all_token_ids.append(token)
        request.num_tokens += 1
        request.decode_until = 0

    def finish_requests(self, request_ids: Iterable[str], status: RequestStatus) -> list[Request]:
        """End requests from outside (abort, error), wherever they are; unknown ids are ignored. Returns those ended."""
        self.settle()
        ended = []
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is None:
                continue
            if request.status is RequestStatus.RUNNING:
                self._leave_running([request])
            else:
                self.waiting.remove(request)
                self.preemption.drop(request)
            self._finish(request, status)
            ended.append(request)
            self._release(request)
        return ended

    def schedule(self, now_s: float = 0.0) -> SchedulerOutput:
        """Plan the next step. Allocates, preempts and admits; `now_s` is only handed to admission policies."""
        self._release_held()
        plan = Plan(self.config.max_num_batched_tokens)
        limit = self._chunk_limit()
        for policy in self.admission:
            policy.begin_step(self.running, len(self.waiting), now_s)
        foresight, step = self._foresight, self._progress.num_planned
        is_calm = foresight is not None and foresight.schedule(plan, limit)
        if not is_calm:
            self.settle()
            self._schedule_running(plan, limit)
        self._progress.num_planned = step + 1
        stop = AdmissionStop.PREEMPTED_THIS_STEP if plan.preempted else self._admit(plan, limit)
        self._last_stop = stop
        steady = self.steady
        num_steady = 0 if steady is None else len(steady)
        self.fingerprint.add_step(
            step, num_steady + len(plan.requests), plan.requests, plan.new_tokens, plan.preempted, plan.prefill_tokens
        )
        output = SchedulerOutput(
            step_index=step,
            requests=plan.requests,
            num_new_tokens=plan.new_tokens,
            num_computed_tokens=plan.computed,
            unsampled=plan.unsampled,
            num_scheduled_tokens=self.config.max_num_batched_tokens - plan.budget,
            num_steady=num_steady,
            steady_kv_tokens=0 if steady is None else steady.kv_tokens(step),
            steady_longest_kv=0 if steady is None else steady.longest_kv(step),
            num_prefill_tokens=plan.prefill_tokens,
            num_recomputed_tokens=plan.recomputed_tokens,
            admission_stop=stop,
            finished_request_ids=self._finished_ids,
            preempted_request_ids=plan.preempted,
            copies=plan.copies,
            swap_out=plan.swap_out,
            swap_in=plan.swap_in,
        )
        self.num_recomputed_tokens += plan.recomputed_tokens
        self._finished_ids = []
        self._after_schedule(output)
        if is_calm and foresight is not None:
            foresight.join_planned()
        return output

    def _after_schedule(self, plan: SchedulerOutput) -> None:
        """For schedulers that plan ahead."""

    def update(self, plan: SchedulerOutput, output: ModelRunnerOutput, now_s: float = 0.0) -> StepResult:
        """Take a step's tokens: append, stop, and free what finished."""
        sampled = output.sampled_token_ids
        requests: list[Request] = []
        tokens: list[int] = []
        finished: list[Request] = []
        unsampled, running = plan.unsampled, RequestStatus.RUNNING
        for i, request in enumerate(plan.requests):
            if (unsampled and i in unsampled) or request.status is not running:
                continue
            token = sampled.get(request.request_id)
            if token is None:  # a beam that waits for the others of its search: nothing to compute until then
                request.decode_until = 0
                continue
            requests.append(request)
            tokens.append(token)
            if self._append(request, token):
                finished.append(request)
        self._after_update(plan, finished, now_s)
        return StepResult(requests, tokens, finished)

    _plans_ahead = False
    """Is a step planned before the output of the one before is taken?"""

    def _after_update(self, plan: SchedulerOutput, finished: list[Request], now_s: float) -> None:
        self._progress.num_updated = plan.step_index + 1
        if finished:
            self._leave_running(finished)
            for request in finished:
                self._release(request)
            self._release_held()
        for policy in self.admission:
            policy.end_step(plan.num_prefill_tokens > 0, now_s)

    # -- running requests ---------------------------------------------------------------------------------------------

    def _enter_running(self, request: Request) -> None:
        request.admission_order = self._num_admitted
        self._num_admitted += 1
        self.running.append(request)
        if self._foresight is not None:
            self._foresight.active.append(request)

    def _leave_running(self, requests: Sequence[Request]) -> None:
        """Those that are in it; others are ignored. The list remains the same one: the foresight reads it too."""
        _remove_from(self.running, requests)
        if self._foresight is not None:
            _remove_from(self._foresight.active, requests)

    def _chunk_limit(self) -> int:
        """Most tokens of one request in this step; 0 = no limit. A lone request is never held back."""
        num_requests = len(self.running) + len(self.waiting)
        limit = self.config.long_prefill_token_threshold
        if num_requests <= 1 or limit <= 0:
            return 0
        if self.config.long_prefill_token_threshold_adaptive:
            limit = max(limit, self.config.max_num_batched_tokens // num_requests)
        return limit

    def _num_pending(self, request: Request) -> int:
        """Tokens that could be computed for a running request in this step."""
        return request.num_tokens - request.num_computed_tokens

    def _schedule_running(self, plan: Plan, limit: int) -> None:
        running = self.running
        last_position = self.blocks.max_model_len - 1
        requests, new_tokens, computed_before, budget = plan.requests, plan.new_tokens, plan.computed, plan.budget
        index = num_plain = 0
        while index < len(running) and budget > 0:
            request = running[index]
            index += 1
            computed = request.num_computed_tokens
            if computed < request.decode_until:  # the common case: one token, no block to take or register
                requests.append(request)
                new_tokens.append(1)
                computed_before.append(computed)
                request.num_computed_tokens = computed + 1
                budget -= 1
                num_plain += 1
                continue
            num_new = self._num_pending(request)
            if 0 < limit < num_new:
                num_new = limit
            num_new = min(num_new, budget, last_position - computed)
            if num_new <= 0:
                continue
            while self.blocks.grow(request, num_new, plan.copies) is None:
                victim = self.waiting.victim_index(running)
                plan.budget = budget
                planned = self._preempt(running[victim], plan)
                budget = plan.budget
                if victim == index - 1:
                    break
                if victim < index - 1 and planned:
                    index -= 1
            else:
                self._plan(request, num_new, plan)
                budget -= num_new
                continue
            break
        plan.budget = budget
        self.blocks.num_kv_tokens += num_plain

    def _plan(self, request: Request, num_new: int, plan: Plan) -> None:
        """Enter a request whose blocks are there, and advance it: its next step may be planned at once."""
        computed = request.num_computed_tokens
        pending = request.num_tokens + request.num_output_placeholders - computed
        if num_new < pending:
            plan.unsampled.add(len(plan.requests))
        plan.requests.append(request)
        plan.new_tokens.append(num_new)
        plan.computed.append(computed)
        if pending > 1 or computed < request.num_prompt_tokens:
            plan.prefill_tokens += num_new
            most = self._most_computed.get(request.request_id, 0) if self._most_computed else 0
            plan.recomputed_tokens += max(min(computed + num_new, most) - computed, 0)
        request.num_computed_tokens = computed + num_new
        self._after_planned(request, is_last=num_new >= pending)

    def _after_planned(self, request: Request, *, is_last: bool) -> None:
        """From here on the request decodes: find out how long nothing but its counter changes."""
        request.decode_until = self._next_block_event(request) if is_last else 0
        if is_last and self._foresight is not None:
            self._foresight.planned_last(request)

    def _next_block_event(self, request: Request) -> int:
        if request.shares_tail:  # the next write may have to copy a block, whatever the position
            request.shares_tail = self.blocks.has_shared_tail(request)
        return 0 if request.shares_tail else self.blocks.next_block_event(request)

    def _preempt(self, request: Request, plan: Plan) -> bool:
        """Suspend a running request; True if it had been planned in this step, whose tokens return to the budget."""
        self._leave_running([request])
        planned = request in plan.requests if request.priority or plan.requests else False
        if planned:
            self._unplan(request, plan)
        self._most_computed[request.request_id] = max(
            request.num_computed_tokens, self._most_computed.get(request.request_id, 0)
        )
        self.preemption.suspend(request, plan.swap_out)
        request.decode_until = 0
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions += 1
        plan.preempted.append(request.request_id)
        self.waiting.add_preempted(request)
        return planned

    def _unplan(self, request: Request, plan: Plan) -> None:
        num_new, computed = plan.remove(request)
        request.num_computed_tokens = computed
        self.blocks.num_kv_tokens -= num_new
        if num_new > 1 or computed < request.num_tokens - 1:
            plan.prefill_tokens -= num_new

    # -- steady decodes -----------------------------------------------------------------------------------------------

    def find_coast(self) -> AdmissionStop | None:
        """Do steps go on without a decision: every running request is steady, nobody can be admitted? If so, why not.

        So it remains until one of them ends, `coast` says otherwise or somebody adds or ends a request.
        """
        foresight, num_running = self._foresight, len(self.running)
        budget = self.config.max_num_batched_tokens - num_running
        if foresight is None or not num_running or budget < 0 or not foresight.is_idle or self.admission:
            return None
        if not self.waiting:
            return AdmissionStop.NO_WAITING
        if num_running >= self._cap:
            return AdmissionStop.SEQUENCE_CAP
        if budget == 0:
            return AdmissionStop.TOKEN_BUDGET
        if self._last_stop not in _LASTING:  # the next plan will look, and mostly admit
            return None
        return self._find_lasting_stop(self.waiting.head(), budget)

    def _find_lasting_stop(self, request: Request, budget: int) -> AdmissionStop | None:
        """What keeps the head of the queue out for as long as steady requests decode; None if something may change.

        Coming steps take blocks and give none back. A cached block that the request hits may be evicted: then it is
        no longer there to be hit, nor is it free.
        """
        steady = self.steady
        if request.num_stale_outputs or steady is None or steady.register_for(request):
            return None
        offer = self._offers.find(request, self.running, budget, self._chunk_limit())
        return offer if isinstance(offer, AdmissionStop) and offer in _LASTING else None

    def coast(self) -> bool:
        """Plan a step of steady decodes alone, as `schedule` would, before the first of them ends; False, and nothing
        done, where there are too few blocks."""
        steady, step = self.steady, self._progress.num_planned
        assert steady is not None
        if steady.num_due(step) > self.blocks.pool.num_free:
            return False
        due = steady.take_due(step)
        if due:
            steady.grow(due, step)
        self.blocks.num_kv_tokens += len(steady)
        self.fingerprint.add_step(step, len(steady), (), (), (), 0)
        self._finished_ids = []
        self._progress.num_planned = step + 1
        return True

    def take_coasted(self) -> None:
        """The output of a coasted step came back."""
        self._progress.num_updated += 1

    @property
    def num_planned(self) -> int:
        """Steps planned since the beginning."""
        return self._progress.num_planned

    @property
    def steady(self) -> SteadyDecodes | None:
        """Running requests that no step looks at; None where decodes are not foreseen."""
        return None if self._foresight is None else self._foresight.steady

    # -- admission ----------------------------------------------------------------------------------------------------

    def _admit(self, plan: Plan, limit: int) -> AdmissionStop:
        """Admit from the head of the queue while everything allows it; returns what ended it."""
        waiting = self.waiting
        while True:
            if not waiting:
                return AdmissionStop.NO_WAITING
            if len(self.running) >= self._cap:
                return AdmissionStop.SEQUENCE_CAP
            if plan.budget <= 0:
                return AdmissionStop.TOKEN_BUDGET
            request = waiting.head()
            stop = self._try_admit(request, plan, limit)
            if stop is not None:
                return stop

    def _try_admit(self, request: Request, plan: Plan, limit: int) -> AdmissionStop | None:
        """Admit the head of the queue; or say why not, with nothing changed: nobody passes it."""
        if request.num_stale_outputs:
            return AdmissionStop.POLICY
        if self._foresight is not None:
            self._foresight.steady.register_for(request)
        offer = self._offers.find(request, self.running, plan.budget, limit)
        if isinstance(offer, AdmissionStop):
            return offer
        self.waiting.pop()
        self._offers.accept(request, offer, plan)
        request.status = RequestStatus.RUNNING
        self._enter_running(request)
        self._plan(request, offer.num_new, plan)
        plan.budget -= offer.num_new
        return None

    # -- endings ------------------------------------------------------------------------------------------------------

    def _append(self, request: Request, token: int) -> bool:
        """Add a sampled token; True if the request ends with it (end-of-sequence is checked before length)."""
        request.all_token_ids.append(token)
        num_tokens = request.num_tokens = request.num_tokens + 1
        if token == request.eos_token_id or (request.stop_token_ids and token in request.stop_token_ids):
            self._finish(request, RequestStatus.FINISHED_STOPPED)
        elif num_tokens >= request.length_limit:
            self._finish(request, RequestStatus.FINISHED_LENGTH)
        else:
            return False
        return True

    def _finish(self, request: Request, status: RequestStatus) -> None:
        request.status = status
        del self._requests[request.request_id]
        if self._most_computed:
            self._most_computed.pop(request.request_id, None)
        self._finished_ids.append(request.request_id)
        self.fingerprint.leave(request)

    def _release(self, request: Request) -> None:
        if self.running and any(policy.holds_finished() for policy in self.admission):
            self._held.append(request)
        else:
            self.blocks.free(request)

    def _release_held(self) -> None:
        """A padded batch gives its blocks back when none of its members runs any more."""
        if self._held and not self.running:
            for request in self._held:
                self.blocks.free(request)
            self._held = []


_LASTING = frozenset((AdmissionStop.KV_BLOCKS, AdmissionStop.TOKEN_BUDGET))
"""What stands against the head of the queue as long as all that runs is steady."""

_FEW = 4
"""Up to here, finding each in a list is quicker than filtering the list."""


def _remove_from(requests: list[Request], leaving: Sequence[Request]) -> None:
    """In place; those that are not there are ignored."""
    if len(leaving) > _FEW:
        ids = {id(request) for request in leaving}
        requests[:] = [request for request in requests if id(request) not in ids]
        return
    for request in leaving:
        if request in requests:
            requests.remove(request)

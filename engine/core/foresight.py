"""Plans the running requests of a step by looking only at those that are not steady decodes (`core.steady`).

Where the order of `running` could decide who gets tokens or blocks it declines, and the scheduler looks at everyone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.core.block_manager import BlockManager
from engine.core.plan import Plan
from engine.core.steady import Progress, SteadyDecodes
from engine.request import Request


class Foresight:
    """A scheduler's part for executors whose answers are known in advance; the scheduler alone calls it."""

    def __init__(
        self,
        blocks: BlockManager,
        running: Sequence[Request],
        progress: Progress,
        token: int,
        *,
        num_pending: Callable[[Request], int],
        enter: Callable[[Request, int, Plan], None],
        is_async: bool,
    ) -> None:
        """`running` and `progress` are the scheduler's own. `num_pending`: tokens that could be computed for a request;
        `enter` puts a request with its tokens into the plan and advances it."""
        self.steady = SteadyDecodes(blocks, progress, token, is_async=is_async)
        blocks.before_register = self.steady.register_like
        self.active: list[Request] = list(running)
        """Running requests that are not steady, in order; the scheduler adds and removes as in `running`."""
        self._blocks = blocks
        self._running = running
        self._progress = progress
        self._num_pending = num_pending
        self._enter = enter
        self._joining: list[Request] = []  # planned for their last known token in the step being planned
        self._late: list[Request] = []  # no longer steady, with a token in flight from when they were
        self._arrears: list[tuple[Request, int]] = []

    @property
    def is_idle(self) -> bool:
        """Every running request is steady, and no token of one that was is in flight."""
        return not self.active and not self._late

    def planned_last(self, request: Request) -> None:
        """A request was planned for its last known token: it decodes from now on."""
        self._joining.append(request)

    def schedule(self, plan: Plan, limit: int) -> bool:
        """Plan the running requests of the next step; False, and nothing planned, where all must be looked at.

        `limit`: most tokens of one request, 0 = none.
        """
        step = self._progress.num_planned
        self._joining = []
        ending = self.steady.take_ending(step)
        if ending:
            self._wake(ending)
        num_steady = len(self.steady)
        wanted = self._wanted(limit)
        if wanted is None or self._num_blocks(wanted, step) > self._blocks.pool.num_free:
            return False
        num_tokens = num_steady + sum([num_new for _, num_new in wanted])
        if num_tokens > plan.budget:
            # One chunk may be cut to what remains, if it is the last in the order.
            if not wanted or wanted[-1][0] is not self._running[-1]:
                return False
            request, num_new = wanted[-1]
            remaining = plan.budget - (num_tokens - num_new)
            if remaining <= 0:
                return False
            wanted[-1] = (request, remaining)
            num_tokens = plan.budget
        self._plan(plan, wanted, step)
        plan.budget -= num_tokens
        self._blocks.num_kv_tokens += num_steady
        return True

    def join_planned(self) -> None:
        """Requests that were planned for their last known token are steady from the next step on, if nothing else
        awaits them."""
        if not self._joining:
            return
        for request in self._joining:
            if self.steady.may_join(request):
                self.steady.join(request, self._progress.num_planned)
        self.active = [request for request in self.active if request.steady_from < 0]

    def settle(self) -> None:
        """Nobody is steady any more."""
        if len(self.steady):
            self._wake(list(self.steady))

    def take_late(self) -> list[Request]:
        """Those whose token is in the output that is taken next, though they are not in its plan."""
        late, self._late = self._late, []
        return late

    def take_arrears(self) -> list[tuple[Request, int]]:
        """(request, tokens that came while it was steady and were not reported) of those that no longer are."""
        arrears, self._arrears = self._arrears, []
        return arrears

    def take_news(self) -> list[tuple[Request, int]]:
        """As `take_arrears`, of those that are still steady too."""
        return self.take_arrears() + self.steady.take_news()

    def _wanted(self, limit: int) -> list[tuple[Request, int]] | None:
        """Tokens that active requests could compute; None where one shares its last block and may have to copy it."""
        last_position = self._blocks.max_model_len - 1
        wanted: list[tuple[Request, int]] = []
        for request in self.active:
            if request.shares_tail:
                return None
            num_new = self._num_pending(request)
            if 0 < limit < num_new:
                num_new = limit
            num_new = min(num_new, last_position - request.num_computed_tokens)
            if num_new > 0:
                wanted.append((request, num_new))
        return wanted

    def _num_blocks(self, wanted: Sequence[tuple[Request, int]], step: int) -> int:
        """Blocks that the step takes; what a chunk that will be cut wants counts whole."""
        size, num_blocks = self._blocks.block_size, self.steady.num_due(step)
        for request, num_new in wanted:
            num_blocks += max(-(-(request.num_computed_tokens + num_new) // size) - len(request.block_ids), 0)
        return num_blocks

    def _plan(self, plan: Plan, wanted: Sequence[tuple[Request, int]], step: int) -> None:
        """Blocks are taken in the order of `running`, by steady decodes and the others alike."""
        self._progress.is_amid = True
        due = self.steady.take_due(step)
        for request, num_new in wanted:
            before = 0
            while before < len(due) and due[before].admission_order < request.admission_order:
                before += 1
            if before:
                self.steady.grow(due[:before], step)
                due = due[before:]
            self._blocks.grow(request, num_new, plan.copies)
            self._enter(request, num_new, plan)
        if due:
            self.steady.grow(due, step)
        self._progress.is_amid = False

    def _wake(self, requests: Sequence[Request]) -> None:
        """From now on these are looked at again."""
        num_planned, num_updated = self._progress.num_planned, self._progress.num_updated
        for request in requests:
            num_back = self.steady.leave(request)
            if num_back:
                self._arrears.append((request, num_back))
            if request.steady_since < num_planned > num_updated:
                self._late.append(request)
            request.decode_until = 0
        self.active = sorted([*self.active, *requests], key=lambda request: request.admission_order)

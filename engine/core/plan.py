"""The step being built: what is planned so far and what remains of the token budget."""

from __future__ import annotations

from engine.outputs import BlockCopy
from engine.request import Request


class Plan:
    """Columns of the coming `SchedulerOutput`, mutable until the step is complete."""

    __slots__ = (
        "budget",
        "computed",
        "copies",
        "new_tokens",
        "preempted",
        "prefill_tokens",
        "recomputed_tokens",
        "requests",
        "swap_in",
        "swap_out",
        "unsampled",
    )

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.requests: list[Request] = []
        self.new_tokens: list[int] = []
        self.computed: list[int] = []
        self.unsampled: set[int] = set()
        self.preempted: list[str] = []
        self.prefill_tokens = 0
        self.recomputed_tokens = 0
        self.copies: list[BlockCopy] = []
        self.swap_out: list[BlockCopy] = []
        self.swap_in: list[BlockCopy] = []

    def remove(self, request: Request) -> tuple[int, int]:
        """Take a planned request out again; its tokens return to the budget.

        Returns (tokens it was to compute, tokens computed before).
        """
        position = self.requests.index(request)
        self.requests.pop(position)
        num_new, computed = self.new_tokens.pop(position), self.computed.pop(position)
        self.unsampled = {i - (i > position) for i in self.unsampled if i != position}
        self.budget += num_new
        return num_new, computed

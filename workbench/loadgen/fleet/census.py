"""How many replicas there were, over time."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.loadgen.fleet.place import Place, State


class Census:
    """Counts at each change; times never go back."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self.counts: list[tuple[float, int, int]] = []
        """(from when on, up, starting): draining ones and failed ones are in neither."""
        self.take(0.0)

    def take(self, now_s: float) -> None:
        """Count again."""
        states = [place.state for place in self._places]
        count = (now_s, states.count(State.UP), states.count(State.STARTING))
        if self.counts and self.counts[-1][0] == now_s:
            self.counts.pop()
        if not self.counts or self.counts[-1][1:] != count[1:]:
            self.counts.append(count)

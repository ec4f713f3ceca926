"""Several objectives at once: the front that nothing beats, its knee, and how much of the space it covers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.search.trials import TrialRecord

Point = tuple[float, ...]
"""Lower is better in each place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What a search with several objectives found."""

    objectives: Mapping[str, bool]
    """Name -> whether it is maximised."""
    records: tuple[TrialRecord, ...]
    """Configurations that no other beats in every objective, by the first objective, best first."""
    knee: TrialRecord
    """The one nearest to the best of everything, each objective scaled to the span of the front."""
    hypervolume: float
    """Share of the box between the best and the worst value of every valid trial that the front dominates, 0 to 1."""

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "objectives": {name: "maximize" if up else "minimize" for name, up in self.objectives.items()},
            "front": [
                {"number": each.number, "params": dict(each.params), "values": dict(each.outcome.objectives or {})}
                for each in self.records
            ],
            "knee": self.knee.number,
            "hypervolume": self.hypervolume,
        }


def find_front(records: Iterable[TrialRecord], objectives: Mapping[str, bool]) -> Front | None:
    """Over the trials that may win and have every objective; None without any; of equals the earlier one."""
    able = [
        (record, point)
        for record in records
        if record.outcome.may_win and (point := _point(record, objectives)) is not None
    ]
    if not able:
        return None
    points = [point for _, point in able]
    on_front: list[tuple[TrialRecord, Point]] = []
    for record, point in able:
        if not any(dominates(other, point) for other in points) and all(point != kept for _, kept in on_front):
            on_front.append((record, point))
    on_front.sort(key=lambda pair: pair[1])
    front = [point for _, point in on_front]
    return Front(
        objectives=objectives,
        records=tuple(record for record, _ in on_front),
        knee=on_front[_nearest_to_ideal(front)][0],
        hypervolume=_covered_share(front, points),
    )


def dominates(one: Point, other: Point) -> bool:
    """Nowhere worse, somewhere better."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and one != other


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """Volume of what the points dominate up to the reference, by slicing along the last objective."""
    inside = [point for point in points if all(a < r for a, r in zip(point, reference, strict=True))]
    if not inside:
        return 0.0
    if len(reference) == 1:
        return reference[0] - min(point[0] for point in inside)
    volume = 0.0
    heights = sorted({point[-1] for point in inside})
    for height, above in zip(heights, [*heights[1:], reference[-1]], strict=True):
        below = [point[:-1] for point in inside if point[-1] <= height]
        volume += hypervolume(below, reference[:-1]) * (above - height)
    return volume


def _point(record: TrialRecord, objectives: Mapping[str, bool]) -> Point | None:
    values = record.outcome.objectives or {}
    found = [values.get(name) for name in objectives]
    if any(value is None or not math.isfinite(value) for value in found):
        return None
    return tuple(-float(v or 0.0) if up else float(v or 0.0) for v, up in zip(found, objectives.values(), strict=True))


def _spans(points: Sequence[Point]) -> tuple[Point, Point]:
    """(best, worst) of each objective."""
    return tuple(map(min, zip(*points, strict=True))), tuple(map(max, zip(*points, strict=True)))


def _nearest_to_ideal(front: Sequence[Point]) -> int:
    best, worst = _spans(front)

    def distance(point: Point) -> float:
        scaled = ((p - b) / (w - b) for p, b, w in zip(point, best, worst, strict=True) if w > b)
        return math.hypot(*scaled)

    return min(range(len(front)), key=lambda index: distance(front[index]))


def _covered_share(front: Sequence[Point], points: Sequence[Point]) -> float:
    """1 where an objective does not vary: the front is then a single value of it."""
    best, worst = _spans(points)
    varying = [axis for axis in range(len(best)) if worst[axis] > best[axis]]
    if not varying:
        return 1.0
    scaled = [tuple((p[a] - best[a]) / (worst[a] - best[a]) for a in varying) for p in front]
    return hypervolume(scaled, (1.0,) * len(varying))

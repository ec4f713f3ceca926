"""Parameters that changed nothing: trials whose schedules were identical, decision by decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.search.study import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class IdenticalSchedules:
    """Trials with one decision fingerprint."""

    trials: tuple[int, ...]
    unaffecting: Mapping[str, tuple[Any, ...]]
    """Parameter -> its different values among these trials; none of them made a difference."""

    @property
    def sentence(self) -> str:
        """One line for people."""
        names = ", ".join(f"{name} ({' / '.join(map(str, values))})" for name, values in self.unaffecting.items())
        what = names or "no parameter differs: the same configuration was run again"
        return f"Trials {', '.join(map(str, self.trials))} made identical scheduling decisions: {what} changed nothing."


def find_identical_schedules(records: Iterable[TrialRecord]) -> list[IdenticalSchedules]:
    """Groups of at least two trials with equal decision fingerprints, by their first trial."""
    groups: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.outcome.fingerprint is not None:
            groups.setdefault(record.outcome.fingerprint, []).append(record)
    found = []
    for members in groups.values():
        if len(members) < 2:
            continue
        values = {name: tuple(dict.fromkeys(m.params[name] for m in members)) for name in members[0].params}
        found.append(
            IdenticalSchedules(
                trials=tuple(member.number for member in members),
                unaffecting={name: seen for name, seen in values.items() if len(seen) > 1},
            )
        )
    return found

"""The one error of everything a user writes: scenario files, `--set` overrides and the data files they name."""

from __future__ import annotations

from collections.abc import Sequence

_MAX_LINES = 3


class ScenarioError(ValueError):
    """A scenario, an override or a data file that cannot be used; one line per problem, at most three in total."""

    def __init__(self, *problems: str) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(_shortened(self.problems)))


def _shortened(problems: Sequence[str]) -> list[str]:
    lines = [" ".join(problem.split()) for problem in problems]
    if len(lines) <= _MAX_LINES:
        return lines
    return [*lines[: _MAX_LINES - 1], f"... and {len(lines) - _MAX_LINES + 1} more problems"]


def shown(value: object, limit: int = 60) -> str:
    """`value` as a message shows it: one line, cut where it is long."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."

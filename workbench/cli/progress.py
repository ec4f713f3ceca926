"""A line that follows a sweep: trials, elapsed and expected time, also while a trial runs."""

from __future__ import annotations

from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from workbench.cli.console import err


class TrialProgress:
    """Shown on terminals only; what others print goes above it."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("trials"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("elapsed, about"),
            TimeRemainingColumn(),
            TextColumn("to go"),
            console=err,
            transient=True,
            disable=not err.is_terminal,
        )
        self._task = self._progress.add_task("trials", total=None)

    def begin(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def advance(self) -> None:
        self._progress.advance(self._task)

    def __enter__(self) -> TrialProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

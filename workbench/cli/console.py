"""Terminal output: results to stdout, progress to stderr."""

from __future__ import annotations

import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console

if TYPE_CHECKING:
    from workbench.loadgen.target import Progress
    from workbench.scenario import Scenario


def _is_wrapped(stream: TextIO) -> bool:
    """Lines are wrapped where a person reads them; a file or a pipe gets them whole."""
    return stream.isatty() or "COLUMNS" in os.environ


out = Console(highlight=False, soft_wrap=not _is_wrapped(sys.stdout))
err = Console(stderr=True, highlight=False, soft_wrap=not _is_wrapped(sys.stderr))


def write(text: str, indent: int = 2) -> None:
    """Print a line on stdout, wrapped to the terminal with further lines indented by `indent` columns."""
    if not out.soft_wrap:
        text = textwrap.fill(
            text, out.width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )
    out.print(text, markup=False, soft_wrap=True)


def seconds(value: float | None) -> str:
    """A duration for people: 12.3 ms, 1.20 s; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value * 1000:.1f} ms" if abs(value) < 1 else f"{value:.2f} s"


def number(value: Any) -> str:
    """Short for people: 12, 3.46, a dash where there is none."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def metric(name: str, value: float | None) -> str:
    """A value in the unit that its name implies."""
    return seconds(value) if name.split(".")[0].endswith("_s") and "per_s" not in name else number(value)


def params(values: Any) -> str:
    """`a=1 b=2`."""
    return " ".join(f"{name}={number(value)}" for name, value in values.items())


def limit_in_words(limit: Mapping[str, Any]) -> str:
    """Echo a limit where it is judged: value, share reached, share required."""
    reached = "–" if limit["share_reached"] is None else f"{limit['share_reached']:.1%}"
    return (
        f"{limit['name']} {seconds(limit['limit_s'])}: {seconds(limit['value_s'])}; {reached} of the requests keep it, "
        f"{limit['share_required']:.0%} must"
    )


def show_doubts(scenario: Scenario) -> None:
    """Question on stderr what is valid and probably not meant."""
    for text in scenario.doubts:
        err.print(f"warning: {text}", markup=False)


@contextmanager
def run_status(text: str) -> Iterator[Callable[[Progress], None]]:
    """A line that follows a run; `text` until the first news."""
    with err.status(text) as status:
        yield lambda progress: status.update(
            f"{progress.elapsed_s:6.1f} s: {progress.num_ended} of {progress.num_requests} requests ended, "
            f"{progress.num_output_tokens} tokens"
        )

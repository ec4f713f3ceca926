"""From an exception to a message on stderr and an exit code: 1 run failed, 2 user error, 3 internal error."""

from __future__ import annotations

import sys
import traceback
from typing import Any

_MAX_LINES = 3
_MAX_WIDTH = 600
"""Characters of a line: a message may quote what it was given, however long that is."""


def exit_code_of(error: Exception) -> int:
    """Say what went wrong in at most three lines; only an internal error shows its traceback."""
    from engine.errors import ConfigError, ModelLoadError, RequestRefused
    from workbench.scenario import ScenarioError

    if isinstance(error, ScenarioError | ConfigError | ModelLoadError | RequestRefused):
        return _say(error, 2)
    module = type(error).__module__
    if module.startswith(("workbench.store", "workbench.search.errors")):
        return _say(error, 2)
    if module.startswith(("workbench.", "engine.")):
        return _say(error, 1)
    if hasattr(error, "format_message"):  # Typer's errors of usage, which have no public base class
        return _say_usage(error)
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return _write([f"{name}{error.strerror or error}"], 2)
    if isinstance(error, MemoryError):
        return _write([f"out of memory ({error})" if str(error) else "out of memory"], 1)
    traceback.print_exception(error)
    sys.stderr.write("internal error: please report the lines above\n")
    return 3


def _say(error: Exception, code: int) -> int:
    return _write(str(error).splitlines() or [type(error).__name__], code)


def _say_usage(error: Any) -> int:
    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else "workbench"
    message = str(error.format_message())
    if message.startswith("Usage:"):  # a command without arguments shows its help
        sys.stderr.write(message + "\n")
        return 2
    return _write([" ".join(message.split()), f"Try '{command} --help'"], 2)


def _write(lines: list[str], code: int) -> int:
    shown = [line if len(line) <= _MAX_WIDTH else f"{line[: _MAX_WIDTH - 3]}..." for line in lines[:_MAX_LINES]]
    sys.stderr.write("error: " + "\n".join(shown) + "\n")
    return code

"""From an exception to a message on stderr and an exit code: 1 run failed, 2 user error, 3 internal error."""

from __future__ import annotations

import sys
import traceback


def exit_code_of(error: Exception) -> int:
    """Say what went wrong in at most three lines; only an internal error shows its traceback."""
    from engine.errors import ConfigError, ModelLoadError, RequestRefused
    from workbench.scenario import ScenarioError

    if isinstance(error, ScenarioError | ConfigError | ModelLoadError | RequestRefused):
        return _say(error, 2)
    module = type(error).__module__
    if module.startswith("workbench.store"):
        return _say(error, 2)
    if module.startswith(("workbench.", "engine.")):
        return _say(error, 1)
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"error: {name}{error.strerror or error}\n")
        return 2
    traceback.print_exception(error)
    sys.stderr.write("internal error: please report the lines above\n")
    return 3


def _say(error: Exception, code: int) -> int:
    lines = str(error).splitlines() or [type(error).__name__]
    sys.stderr.write("\n".join([f"error: {lines[0]}", *lines[1:3]]) + "\n")
    return code

"""Runs a server for as long as somebody holds our stdin: `server_keeper.py LOG GRACE_S COMMAND...`.

Whoever asked for the server may be killed, and a server may be many processes. So a process of its own starts it in a
session of its own and ends the whole of it (SIGTERM, after `GRACE_S` SIGKILL) once stdin closes. Standard library
only: it is run as a file and starts at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

NOT_STARTED = 127
"""Exit code where the command cannot be run; the log says why."""
_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1


def main(log: str, grace_s: str, *command: str) -> int:
    """The exit code of the command, as a shell would give it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server ends with stdin, not with the terminal
    with open(log, "wb") as output:
        try:
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_listen,
            )
        except (OSError, ValueError) as error:
            output.write(f"{command[0]}: {getattr(error, 'strerror', None) or error}\n".encode())
            return NOT_STARTED
        while server.poll() is None and not select.select([sys.stdin], [], [], _POLL_S)[0]:
            pass  # nothing is ever written: readable means closed
        _end(server, float(grace_s))
    code = server.returncode
    return code if code >= 0 else 128 - code


def _listen() -> None:
    """In the child: what we ignore it must not, and if even we are killed it ends."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _end(server: subprocess.Popen[bytes], grace_s: float) -> None:
    if server.poll() is None:
        _signal(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(grace_s)
    _signal(server.pid, signal.SIGKILL)  # and what it left behind
    server.wait()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""A server that is started for one configuration, measured as an endpoint, and stopped."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from workbench.loadgen import server_keeper
from workbench.loadgen.endpoint import EndpointTarget
from workbench.loadgen.endpoint_probe import answers
from workbench.loadgen.errors import RunFailed, ServerFailed
from workbench.loadgen.target import ProgressCallback
from workbench.metrics.records import RunRecord, StopRule
from workbench.workload.records import ModelLimits, Workload

GRACE_S = 20.0
"""From SIGTERM to SIGKILL: engines free their GPU and end their own processes."""
_POLL_S = 0.1
_TAIL = 2000


class LaunchedServer:
    """The process. It ends with `stop`, and with this process however that ends."""

    def __init__(self, command: Sequence[str], url: str) -> None:
        """Start it. Raises `ConfigError` if somebody else answers at the address already."""
        if answers(url):
            raise ConfigError(
                f"target.url: a server answers at {url} before ours is started, and would be measured in its place. "
                "Stop it, or choose another address"
            )
        self._folder = Path(tempfile.mkdtemp(prefix="workbench-server-"))
        self._log, self._url, self._keeps_log = self._folder / "log", url, False
        keeper = [sys.executable, "-I", str(Path(server_keeper.__file__)), str(self._log), str(GRACE_S)]
        self._keeper = subprocess.Popen(
            [*keeper, *command],
            stdin=subprocess.PIPE,  # never written: it tells the keeper, by closing, that we are gone
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us; we stop the server
        )

    def wait_until_ready(self, within_s: float) -> None:
        """Raises `ServerFailed` if it ends, or does not answer within the time."""
        begin_s = time.monotonic()
        while not answers(self._url):
            if (ended := self.ended) is not None:
                raise ServerFailed(f"target.launch: the server ended before it was ready ({ended})")
            if time.monotonic() - begin_s > within_s:
                raise ServerFailed(
                    f"target.launch: the server does not answer at {self._url} after {within_s:g} s "
                    f"({self._last_words()}). Raise ready_within, or correct the port in the command"
                )
            time.sleep(_POLL_S)

    @property
    def ended(self) -> str | None:
        """How a server that has ended by itself did so, with its last words; None while it runs."""
        code = self._keeper.poll()
        if code is None:
            return None
        if code == server_keeper.NOT_STARTED:
            return f"cannot be run: {self._last_words()}"
        how = f"killed by signal {code - 128}" if code > 128 else f"exit code {code}"
        return f"{how}; {self._last_words()}"

    def stop(self) -> None:
        """Returns once every process of it has ended. A log that an error spoke of stays."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        if not self._keeps_log:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _last_words(self) -> str:
        try:
            text = self._log.read_bytes()[-_TAIL:].decode("utf-8", errors="replace")
        except OSError:
            text = ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if not lines:
            return "its log is empty"
        self._keeps_log = True
        return f"its log {self._log} ends with: {lines[-1][:300]}"


class LaunchedTarget:
    """The endpoint of a server of its own."""

    def __init__(
        self, command: Sequence[str], url: str, *, ready_within_s: float, connect: Callable[[], EndpointTarget]
    ) -> None:
        """`connect` makes the endpoint once the server answers. Raises `ServerFailed` or `ConfigError`; nothing runs
        then."""
        self._server = LaunchedServer(command, url)
        try:
            self._server.wait_until_ready(ready_within_s)
            self._endpoint = connect()
        except BaseException:
            self._server.stop()
            raise

    @property
    def limits(self) -> ModelLimits:
        return self._endpoint.limits

    def run(
        self,
        workload: Workload,
        *,
        deadline_s: float | None = None,
        on_progress: ProgressCallback | None = None,
        stop: StopRule | None = None,
    ) -> RunRecord:
        """As `EndpointTarget.run`; a server that ends meanwhile is a `RunFailed`, not a bad figure."""
        record = self._endpoint.run(workload, deadline_s=deadline_s, on_progress=on_progress, stop=stop)
        if (ended := self._server.ended) is not None:
            raise RunFailed(f"target.launch: the server ended while it was measured ({ended})", record)
        return record

    def close(self) -> None:
        self._endpoint.close()
        self._server.stop()

    def __enter__(self) -> LaunchedTarget:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

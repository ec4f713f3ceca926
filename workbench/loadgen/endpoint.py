"""An OpenAI-compatible server as a load target. Locust generates the load, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workbench.loadgen.endpoint_plan import ClosedLoopPlan, LoadPlan, LoadProgress, RequestResult
from workbench.loadgen.endpoint_probe import base_url, probe
from workbench.loadgen.endpoint_record import record_of
from workbench.loadgen.errors import RunFailed
from workbench.loadgen.target import Progress, ProgressCallback
from workbench.metrics.records import RunRecord, StopRule
from workbench.workload.records import ModelLimits, Workload

WORKER = "workbench.loadgen.locust_worker"
FALLBACK_VOCAB_SIZE = 1000
"""Ids below this exist in every vocabulary in use; for endpoints whose model we cannot look up."""
_REAP_S = 3.0


class EndpointTarget:
    """Knows the server and what it serves; each `run` starts a load generator and waits for it.

    Raises `engine.errors.ConfigError` at construction if nothing usable answers at the address.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key_env: str | None = None,
        timeout_s: float = 600.0,
        vocab_size: int = FALLBACK_VOCAB_SIZE,
    ) -> None:
        self._url, self._api_key_env, self._timeout_s = base_url(url), api_key_env, timeout_s
        self._served = probe(self._url, model=model, api_key_env=api_key_env, timeout_s=timeout_s)
        self._vocab_size = vocab_size

    @property
    def limits(self) -> ModelLimits:
        """What a workload for this server must keep to, as far as it is known."""
        return ModelLimits(max_model_len=self._served.max_model_len, vocab_size=self._vocab_size)

    def run(
        self,
        workload: Workload,
        *,
        deadline_s: float | None = None,
        on_progress: ProgressCallback | None = None,
        stop: StopRule | None = None,
    ) -> RunRecord:
        """See `Target.run`; `stop` is not asked.

        Requests that fail are rows of the record; only a dead load generator is a `RunFailed`.
        """
        with tempfile.TemporaryDirectory(prefix="workbench-load-") as name:
            directory = Path(name)
            (directory / "plan.json").write_text(self._plan(workload, deadline_s).dumps(), encoding="utf-8")
            end_s = 0.0
            with _worker(directory) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    progress = _progress(line, len(workload))
                    end_s = progress.elapsed_s
                    if on_progress is not None:
                        on_progress(progress)
                code = process.wait()
            results = list(_read_results(directory / "results.jsonl"))
            record = record_of(workload, results, self._facts(), end_s=end_s)
            if code != 0:
                raise RunFailed(f"the load generator died ({_cause(directory, code)})", record)
            return record

    def close(self) -> None:
        """Nothing is held between runs."""

    def _facts(self) -> dict[str, Any]:
        served = self._served
        return {
            "url": self._url,
            "model": served.name,
            "max_model_len": served.max_model_len,
            **served.engine,
        }

    def _plan(self, workload: Workload, deadline_s: float | None) -> LoadPlan:
        closed = workload.closed_loop
        return LoadPlan(
            url=self._url,
            api_key_env=self._api_key_env,
            timeout_s=self._timeout_s,
            arrivals_s=workload.arrival_s.tolist(),
            bodies=[self._body(workload, row) for row in range(len(workload))],
            closed_loop=None
            if closed is None
            else ClosedLoopPlan(concurrency=closed.concurrency, think_time_s=closed.think_time_s),
            max_concurrency=workload.max_concurrency,
            deadline_s=deadline_s,
        )

    def _body(self, workload: Workload, row: int) -> str:
        body = {
            "model": self._served.name,
            "prompt": workload.prompt_token_ids(row).tolist(),
            "max_tokens": int(workload.max_output_tokens[row]),
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(body, separators=(",", ":"))


@contextmanager
def _worker(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """The load generator; gone when the block is left, however that happens."""
    command = [sys.executable, "-m", WORKER, str(directory / "plan.json"), str(directory / "results.jsonl")]
    with (directory / "stderr").open("w", encoding="utf-8") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # never written: it tells the worker, by closing, that we are gone
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,  # Ctrl-C is for us; we end the worker
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_REAP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def _progress(line: str, num_requests: int) -> Progress:
    seen = LoadProgress.loads(line)
    return Progress(
        elapsed_s=seen.elapsed_s,
        num_requests=num_requests,
        num_sent=seen.num_sent,
        num_ended=seen.num_ended,
        num_output_tokens=seen.num_output_tokens,
    )


def _read_results(path: Path) -> Iterator[RequestResult]:
    """Whole lines only: a worker that was killed may have left half of one."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield RequestResult.loads(line)


def _cause(directory: Path, code: int) -> str:
    lines = (directory / "stderr").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {code}"

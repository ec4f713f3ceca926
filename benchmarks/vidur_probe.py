"""Times Vidur's event loop; run by bench_simulator.py with an interpreter that has vidur (0.0.26) installed.

    python vidur_probe.py REQUESTS.csv STEP_MS MAX_SEQS MAX_TOKENS

Prints the seconds of the loop and those that it simulated. Chunked prefills by Vidur's Sarathi scheduler, one A100, no
plots, no traces. Vidur's own predictor needs profiles from a hub; each step takes STEP_MS instead, at no cost, so the
figure leaves out what Vidur spends on predicting.
"""

from __future__ import annotations

import csv
import logging
import sys
import tempfile
import time
from typing import Any


def make_simulator(step_ms: float, max_seqs: int, max_tokens: int, output_dir: str) -> Any:
    """Without requests."""
    from vidur import simulator
    from vidur._native.entities import ExecutionTime
    from vidur.config import config
    from vidur.execution_time_predictor.base_execution_time_predictor import BaseExecutionTimePredictor
    from vidur.execution_time_predictor.execution_time_predictor_registry import ExecutionTimePredictorRegistry
    from vidur.types import ExecutionTimePredictorType

    class Constant(BaseExecutionTimePredictor):
        def get_execution_time(self, batch: Any, pipeline_stage: int) -> Any:
            return ExecutionTime(1, *[0.0] * 6, step_ms, *[0.0] * 7)

    Constant.__abstractmethods__ = frozenset()
    ExecutionTimePredictorRegistry._registry[ExecutionTimePredictorType.RANDOM_FORREST] = Constant
    simulator.Simulator._init_event_queue = lambda self: None
    simulator.Simulator._write_output = lambda self: None
    replica = config.ReplicaConfig(
        model_name="meta-llama/Llama-3-8B", num_pipeline_stages=1, tensor_parallel_size=1, device="a100",
        network_device="a100_dgx", gpu_memory_utilization=0.9,
    )  # fmt: skip
    cluster = config.ClusterConfig(
        replica_config=replica,
        replica_scheduler_config=config.SarathiSchedulerConfig(batch_size_cap=max_seqs, chunk_size=max_tokens),
        cache_config=config.CacheConfig(enable_prefix_caching=True),
    )
    metrics = config.MetricsConfig(enable_chrome_trace=False, store_plots=False, output_dir=output_dir)
    return simulator.Simulator(config.SimulationConfig(cluster_config=cluster, metrics_config=metrics))


def main(path: str, step_ms: str, max_seqs: str, max_tokens: str) -> None:
    logging.disable(logging.CRITICAL)
    from vidur.entities import Request
    from vidur.events import RequestArrivalEvent

    with tempfile.TemporaryDirectory() as output_dir:
        simulator = make_simulator(float(step_ms), int(max_seqs), int(max_tokens), output_dir)
        with open(path, encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                lengths = int(float(row["num_prefill_tokens"])), int(float(row["num_decode_tokens"]))
                request = Request(float(row["arrived_at"]), *lengths)
                simulator._add_event(RequestArrivalEvent(request.arrived_at, request))
        started = time.perf_counter()
        simulator.run()
        print(time.perf_counter() - started, simulator._time)


if __name__ == "__main__":
    main(*sys.argv[1:])

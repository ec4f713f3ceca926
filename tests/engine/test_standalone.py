"""`engine` runs with numpy, torch and safetensors alone."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
BLOCKED = {"numba", "transformers", "tokenizers", "pydantic", "optuna", "scipy", "pandas", "streamlit", "fastapi",
           "uvicorn", "prometheus_client", "gguf", "huggingface_hub", "workbench", "typer", "rich", "triton"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked)", name=name)

sys.meta_path.insert(0, Blocker())
from engine.llm import LLM
from engine.sampling_params import SamplingParams
from engine.simulation import SimulatedDevice, build_simulation
from engine.config import EngineConfig
from engine.replay import Replay
from engine.request import Request

print(LLM("tiny", num_blocks=64, max_model_len=128).generate([[1, 2, 3]], SamplingParams(max_tokens=3))[0].token_ids)
config = EngineConfig.from_dict({"model": "Llama-3.1-8B", "max_model_len": 4096})
core = build_simulation(config, SimulatedDevice.of("h100")).core
core.add_request(Request("a", [1] * 100, SamplingParams(max_tokens=3, ignore_eos=True)))
while core.has_unfinished():
    core.step()
print(len(core.step_stats))
"""


def test_engine_imports_and_runs_without_any_optional_package() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("3")

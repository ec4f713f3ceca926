from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from engine.config import GIB, EngineConfig
from engine.errors import ConfigError
from engine.models.builtin import BUILTIN_SPECS
from engine.resolve import DeviceFacts, ResolvedConfig, resolve

TINY = BUILTIN_SPECS["tiny"]
CPU = DeviceFacts(kind="cpu", name="cpu", memory_bytes=GIB, memory_reason="a test", num_threads=3)
GPU = DeviceFacts(kind="cuda", name="cuda:0", memory_bytes=8 * GIB, memory_reason="a test", num_threads=3)


def resolved(facts: DeviceFacts = CPU, **options: Any) -> ResolvedConfig:
    return resolve(EngineConfig.from_dict(options), TINY, facts)


def test_resolve_defaults_fill_every_auto_with_a_reason() -> None:
    result = resolved()

    open_ends = {name for name, value in result.config.to_dict().items() if value is None or value == "auto"}
    assert open_ends == {"max_num_partial_prefills", "max_long_partial_prefills"}
    assert result.config.device.threads == 3
    assert result.max_model_len == 2048
    assert set(result.reasons) == {
        "device",
        "dtype",
        "kv_cache_dtype",
        "max_model_len",
        "attention_backend",
        "threads",
        "device_memory",
        "max_num_active_seqs",
        "num_blocks",
    }


def test_resolve_given_values_are_kept_without_reason() -> None:
    result = resolved(dtype="bfloat16", max_model_len=100, num_blocks=50, threads=1)

    assert (result.dtype, result.kv_cache_dtype, result.max_model_len) == ("bfloat16", "bfloat16", 100)
    assert (result.num_blocks, result.config.cache.num_blocks, result.config.device.threads) == (50, 50, 1)
    assert not {"dtype", "max_model_len", "num_blocks", "threads"} & set(result.reasons)


def test_resolve_twice_changes_nothing() -> None:
    first = resolved()

    again = resolve(first.config, TINY, CPU)

    assert again.config == first.config
    assert again.reasons == {}


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [(CPU, "float32", "cpu"), (GPU, "bfloat16", "triton"), (GPU, "float64", "torch_reference")],
)
def test_resolve_backend_follows_device_and_type(device: DeviceFacts, dtype: str, expected: str) -> None:
    assert resolved(device, dtype=dtype).config.device.attention_backend == expected


def test_resolve_swap_space_becomes_host_blocks() -> None:
    assert resolved(preemption="swap", swap_space="1MiB").num_host_blocks == 1024**2 // 16384


def test_resolve_float16_checkpoint_on_cpu_runs_in_float32() -> None:
    half = dataclasses.replace(TINY, dtype="float16")

    assert resolve(EngineConfig(), half, CPU).dtype == "float32"
    assert resolve(EngineConfig(), half, GPU).dtype == "float16"


def test_resolve_sliding_window_bounds_length() -> None:
    windowed = dataclasses.replace(TINY, sliding_window=512)

    assert resolve(EngineConfig(), windowed, CPU).max_model_len == 512
    with pytest.raises(ConfigError, match=r"at most 512, the model's sliding window \(got 513\)"):
        resolve(EngineConfig.from_dict({"max_model_len": 513}), windowed, CPU)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 4096}, "at most 2048, the model's positions"),
        ({"device": "cuda"}, "no CUDA device was found"),
        ({"attention_backend": "triton"}, "triton needs a CUDA device"),
        ({"num_blocks": 10}, "maximum model length is 144"),
    ],
)
def test_resolve_clash_with_model_or_device_is_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match=message):
        resolved(**options)


def test_planning_modules_load_no_torch() -> None:
    code = (
        "import sys, engine.resolve, engine.models.loader, engine.models.tokenizer, engine.executor.base\n"
        "from engine.config import EngineConfig\n"
        "engine.resolve.resolve(EngineConfig(), engine.models.loader.find_spec('tiny'))\n"
        "sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

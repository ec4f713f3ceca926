from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import GIB, MIB
from engine.errors import ConfigError, MemoryBudgetError
from engine.memory_model import MemoryLedger, estimate_activation, machine_memory_bytes, plan_memory
from engine.models.builtin import BUILTIN_SPECS

TINY = BUILTIN_SPECS["tiny"]


def plan(**changes: Any) -> MemoryLedger:
    options: dict[str, Any] = {
        "dtype": "float32",
        "kv_cache_dtype": "float32",
        "block_size": 16,
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "device_bytes": GIB,
        "gpu_memory_utilization": 0.9,
    }
    return plan_memory(TINY, **(options | changes))


def test_plan_memory_lines_add_up_to_the_budget() -> None:
    ledger = plan()

    spent = ledger.weight_bytes + ledger.activation_bytes + ledger.overhead_bytes + ledger.kv_bytes
    assert ledger.budget_bytes == 966_367_642
    assert 0 <= ledger.budget_bytes - spent < ledger.bytes_per_block
    assert ledger.bytes_per_block == 2 * 2 * 2 * 32 * 4 * 16
    assert not ledger.is_override


def test_plan_memory_measured_bytes_replace_estimates() -> None:
    ledger = plan(weight_bytes=100 * MIB, activation_bytes=200 * MIB, overhead_bytes=300 * MIB)

    assert ledger.num_blocks == (966_367_642 - 600 * MIB) // 16384


def test_plan_memory_given_num_blocks_overrides_sizing() -> None:
    ledger = plan(num_blocks=65, device_bytes=1)

    assert (ledger.num_blocks, ledger.kv_bytes, ledger.is_override) == (65, 65 * 16384, True)


def test_plan_memory_no_room_shows_arithmetic_and_remedy() -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        plan(device_bytes=4 * MIB)

    message = str(caught.value)
    assert len(message.splitlines()) <= 3
    for part in ("4.0 MiB x gpu_memory_utilization 0.9 = 3.6 MiB", "weights 1.9 MiB", "leaves -", "is needed"):
        assert part in message


@pytest.mark.parametrize(("num_blocks", "fits"), [(65, True), (64, False)])
def test_plan_memory_block_zero_does_not_hold_tokens(num_blocks: int, fits: bool) -> None:
    if fits:
        plan(num_blocks=num_blocks)
        return
    with pytest.raises(
        ConfigError, match=r"needs 64 KV blocks .* 63 usable(.|\n)*maximum model length is 1008"
    ) as caught:
        plan(num_blocks=num_blocks)
    assert "Raise num_blocks" in str(caught.value)


def test_estimate_activation_grows_with_each_limit() -> None:
    base: dict[str, Any] = {"max_num_batched_tokens": 256, "max_num_seqs": 256, "max_model_len": 512}
    peak = estimate_activation(TINY, dtype="float32", **base).peak_bytes

    for name in ("max_num_batched_tokens", "max_model_len"):
        assert estimate_activation(TINY, dtype="float32", **(base | {name: 2048})).peak_bytes > peak
    few = estimate_activation(TINY, dtype="float32", **(base | {"max_num_seqs": 1}))
    assert few.logits_bytes < estimate_activation(TINY, dtype="float32", **base).logits_bytes


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16 * GIB),
        ({"sys/fs/cgroup/memory.max": "max\n"}, 16 * GIB),
        ({"sys/fs/cgroup/memory.max": f"{4 * GIB}\n"}, 4 * GIB),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n"}, 2 * GIB),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 16 * GIB),
        (
            {
                "proc/self/cgroup": "0::/user.slice/app.scope\n",
                "sys/fs/cgroup/user.slice/memory.max": f"{3 * GIB}\n",
                "sys/fs/cgroup/user.slice/app.scope/memory.max": "max\n",
            },
            3 * GIB,
        ),
    ],
    ids=["no limit", "v2 max", "v2 limit", "v1 limit", "v1 none", "v2 limit of the parent"],
)
def test_machine_memory_takes_the_tightest_limit(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert machine_memory_bytes(write(tmp_path, MEMINFO | files)) == expected

"""The Triton kernel compiles for GPUs that are not here. What it computes is the backend contract's matter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

# In a process of its own: TRITON_INTERPRET, if set, would have replaced the compiler at import.
COMPILE = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from engine.kernels.triton_paged import paged_attention_kernel as kernel

capability, element, head_dim, rows = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
names = kernel.arg_names
constants = dict(GROUP_SIZE=4, HEAD_DIM=head_dim, HEAD_DIM_PAD=triton.next_power_of_2(head_dim), BLOCK_SIZE=16,
                 ROWS=rows, TILE=64, UPCAST=element == "fp32")
signature = {name: "i32" for name in names}
signature |= {name: "*i32" for name in ("block_tables_ptr", "query_starts_ptr", "seq_lens_ptr")}
signature |= {name: "*" + element for name in ("query_ptr", "key_cache_ptr", "value_cache_ptr", "out_ptr")}
signature |= {"scale": "fp32"} | {name: "constexpr" for name in constants}
aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in signature if name.endswith("_ptr")}
source = ASTSource(fn=kernel, signature=signature, attrs=aligned,
                   constexprs={(names.index(name),): value for name, value in constants.items()})
compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(num_warps=4))
print(len(compiled.asm["cubin"]), compiled.metadata.shared, "mma" in compiled.asm["ptx"])
"""


@pytest.mark.parametrize(
    ("capability", "element", "head_dim", "rows"),
    [(80, "bf16", 64, 16), (80, "bf16", 128, 64), (90, "bf16", 128, 16), (90, "bf16", 80, 64), (90, "fp32", 64, 16)],
)
def test_kernel_compiles_to_machine_code(capability: int, element: str, head_dim: int, rows: int) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, str(capability), element, str(head_dim), str(rows)]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    size, shared, has_mma = done.stdout.split()
    assert int(size) > 4000
    assert int(shared) <= 99 * 1024  # what every GPU since sm_80 grants a block
    if element == "bf16":
        assert has_mma == "True"

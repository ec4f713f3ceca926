"""What whole servers show and operator tables do not: factors on the parts of a step, by architecture.

Operators are timed one by one, in short bursts and with their inputs at hand. In a server the chip runs hot for
minutes (clocks fall under load), kernels follow each other without a gap, and some are fused. The factors are fitted to
published runs (`engine/catalog/end_to_end.csv`; docs/simulation.md says how) and shrunk towards 1.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt

from engine.catalog import GpuSpec

Array = npt.NDArray[np.float64]
_RIDGE_TOKENS = 256.0
"""About where linear layers turn from reading weights to computing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Time in a server / time of the operators alone, but for `overlap`, which scales an exponent."""

    few_tokens: float = 1.0
    """Linear layers that mostly read weights."""
    many_tokens: float = 1.0
    """Linear layers that mostly compute: in a line that was fitted before there was `compute`."""
    compute: float = 1.0
    """Time of the tensor units: clocks fall under the power limit. It shows only where nothing slower hides it."""
    overlap: float = 1.0
    """How sharply the slower of reading and computing hides the other: at the power limit they slow each other down."""
    few_reduced: float = 1.0
    """All-reduce of small messages."""
    many_reduced: float = 1.0
    """All-reduce of large messages."""
    decode_attention: float = 1.0
    mixed_attention: float = 1.0
    """Decodes beside prompts in one kernel call, made for prompts."""

    def linear(self, tokens: Array) -> Array:
        """[num] of the linear layers over so many tokens."""
        return _blend(self.few_tokens, self.many_tokens, tokens)

    def all_reduce(self, tokens: Array) -> Array:
        """[num] of the all-reduce of so many tokens."""
        return _blend(self.few_reduced, self.many_reduced, tokens)


def _blend(few: float, many: float, tokens: Array) -> Array:
    squares = (tokens / _RIDGE_TOKENS) ** 2
    share = squares / (1.0 + squares)
    return np.asarray(few ** (1.0 - share) * many**share)


def factors_for(gpu: GpuSpec, weights: str, kv: str) -> Factors:
    """Of a GPU's architecture: linear layers by the type of the weights, attention by that of the KV cache; 1 where no
    published run speaks for it. What comes from power and links holds for fp8 as for bfloat16."""
    family, table = family_of(gpu), _table()
    known = table.get((family, "bfloat16"), Factors())
    alike = replace(known, few_tokens=1.0, many_tokens=1.0)
    linear = table.get((family, "fp8"), alike) if weights == "fp8" else known
    attention = table.get((family, "fp8"), Factors()) if kv.startswith("fp8") else known
    return replace(linear, decode_attention=attention.decode_attention, mixed_attention=attention.mixed_attention)


def family_of(gpu: GpuSpec) -> str:
    """GPUs that share factors: an architecture's parts with links of their own, on PCIe, and without peer access."""
    link = gpu.link_type.lower()
    form = "alone" if "no p2p" in link else "pcie" if "pcie" in link else "link"
    return f"{gpu.arch.lower()}/{form}"


@cache
def _table() -> dict[tuple[str, str], Factors]:
    text = (resources.files("engine.catalog") / "end_to_end.csv").read_text(encoding="utf-8")
    names = [each.name for each in fields(Factors)]
    return {
        (row["family"], row["weights"]): Factors(**{name: float(row[name]) for name in names})
        for row in csv.DictReader(text.splitlines())
    }

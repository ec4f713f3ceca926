"""Which operator profile speaks for a GPU: its own, or that of the measured GPU most like it."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources

from engine.catalog import GpuSpec
from engine.executor.cost_model.operators import OperatorProfile, load_profile

_LIKE = {
    "Ampere": "a100-80g-sxm",
    "Hopper": "h100-80g-sxm",
    "Ada": "l40s-48g",
    "Blackwell": "b200-180g-sxm",
    "CDNA3": "h100-80g-sxm",
}
"""Architecture -> measured GPU whose efficiencies are carried over."""


def profile_for(gpu: GpuSpec) -> OperatorProfile:
    """The profile of `gpu`. For a GPU that was not measured, the formulas with the efficiencies of the nearest one and
    its own data sheet; learned corrections belong to the chip they were measured on and are left out."""
    if (resources.files("engine.catalog") / "profiles" / f"{gpu.id}.json").is_file():
        return load_profile(gpu.id)
    like = next((other for arch, other in _LIKE.items() if arch.lower() in gpu.arch.lower()), "h100-80g-sxm")
    base = load_profile(like)
    has_nvlink = "nvlink" in gpu.link_type.lower()
    return replace(
        base,
        gpu_id=gpu.id,
        models={name: replace(model, correction=None, error=None) for name, model in base.models.items()},
        all_reduce=base.all_reduce if has_nvlink else {},
        provenance={**base.provenance, "transferred_from": like},
    )

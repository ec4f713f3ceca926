"""Which operator profile speaks for a GPU: its own, or that of the measured GPU most like it."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources

from engine.catalog import GpuSpec
from engine.executor.cost_model.operators import OperatorModel, OperatorProfile, load_profile

_LIKE = {"Ampere": "a100-80g-sxm", "Hopper": "h100-80g-sxm", "Ada": "l40s-48g", "Blackwell": "b200-180g-sxm"}
"""Architecture -> measured GPU whose efficiencies are carried over. Graphics cards of any generation are more like
each other (GDDR memory, small tensor units) than like the data-centre part of their own."""
_GRAPHICS = "l40s-48g"
_NO_LINK = "l40s-48g"
"""Measured all-reduce over PCIe, for GPUs without links of their own."""
_SHARES = {"rtx-pro": (0.8, 0.83), "rtx": (0.96, 0.92)}
"""Graphics cards: (share of the data sheet's tensor rate, of its bandwidth) that GEMMs reach. GeForce rates are those
with float32 accumulation, which are reached almost fully. From the layer tables of LLMServingSim (RTX 4090, RTX PRO
6000; MIT)."""
_OTHER_VENDOR_SHARE = 0.65
"""Share of the carried-over efficiencies that another vendor's kernels reach; from published MI300X runs."""


def profile_for(gpu: GpuSpec) -> OperatorProfile:
    """The profile of `gpu`. For a GPU that was not measured, the formulas with the efficiencies of the nearest one and
    its own data sheet; learned corrections belong to the chip they were measured on and are left out."""
    if (resources.files("engine.catalog") / "profiles" / f"{gpu.id}.json").is_file():
        return load_profile(gpu.id)
    is_graphics = gpu.id.startswith("rtx") and "ampere" not in gpu.arch.lower()
    like = next((other for arch, other in _LIKE.items() if arch.lower() in gpu.arch.lower()), "h100-80g-sxm")
    base = load_profile(_GRAPHICS if is_graphics else like)
    share = 1.0 if gpu.vendor.upper() == "NVIDIA" else _OTHER_VENDOR_SHARE
    shares = (share, share)
    reached = next((pair for prefix, pair in _SHARES.items() if gpu.id.startswith(prefix)), None)
    if is_graphics and reached is not None:
        gemm = base.models["gemm/bfloat16"].parameters
        shares = (reached[0] / gemm["compute"], reached[1] / gemm["memory"])
    links = base if "pcie" not in gpu.link_type.lower() and gpu.link_type else load_profile(_NO_LINK)
    return replace(
        base,
        gpu_id=gpu.id,
        models={name: _transferred(model, *shares) for name, model in base.models.items()},
        all_reduce=links.all_reduce,
        all_reduce_error=None,
        provenance={**base.provenance, "transferred_from": base.gpu_id},
    )


def _transferred(model: OperatorModel, compute: float, memory: float) -> OperatorModel:
    factors = {"compute": compute, "small_head": compute, "memory": memory}
    scaled = {
        name: min(value * factors.get(name, 1.0), 1.0) if name in factors else value
        for name, value in model.parameters.items()
    }
    # What lay in the cache of the measured chip says nothing about another one's.
    return replace(model, parameters={**scaled, "l2_gain": 0.0}, correction=None, error=None)

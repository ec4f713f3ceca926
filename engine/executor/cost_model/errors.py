"""The error of every operator that a deployment launches, for the line that a predicted run states."""

from __future__ import annotations

from engine.catalog import attention_weights
from engine.executor.cost_model.collectives import step_all_reduce_s
from engine.executor.cost_model.operators import FitError
from engine.executor.cost_model.rank_operators import RankOperators

ALL_REDUCE = "all_reduce"


def operator_errors(rank: RankOperators) -> dict[str, FitError | None]:
    """Return operator -> error by cross-validation; None where it was not measured on this GPU.

    All-reduce counts between several GPUs only, a GEMM in the types that the linear layers compute in.
    """
    weights = rank.precision.weights
    types = dict.fromkeys(_computed_in(rank, each) for each in (weights, attention_weights(rank.spec.name, weights)))
    names = [*(("gemm", each) for each in types), ("decode_attention", "bfloat16"), ("prefill_attention", "bfloat16")]
    found = {f"{kind}/{dtype}": rank.profile.model(kind, dtype).error for kind, dtype in names}
    if rank.tensor_parallel_size > 1:
        measured = step_all_reduce_s(rank.profile.all_reduce, rank.tensor_parallel_size, 1.0, graph=True) is not None
        found[ALL_REDUCE] = rank.profile.all_reduce_error if measured else None
    return found


def _computed_in(rank: RankOperators, weights: str) -> str:
    """Return the element type of a GEMM; types without tensor units are unpacked to bfloat16."""
    has_units = weights == "int8" or (weights == "fp8" and rank.gpu.fp8_flops is not None)
    return weights if has_units else "bfloat16"

"""Fit a machine's step cost to timed steps, and say how far it is off on steps that were not in the fit.

A prompt costs more than its own step: its request is taken in while the step before ends, and it waits for that. So a
run of steps with prefills is fitted together with the step before it, and the sum is what must come out. The decode
after it is left out: it finds keys and weights gone from the CPU's caches, which is nothing that a batch shows, and
is noticeable in small batches alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from engine.executor.cost_model.machine import Array, MachineCost, cost_of, design_matrix
from engine.executor.cost_model.step_shape import StepShape

Regime = Literal["decode", "mixed", "prefill", "saturated"]
REGIMES: tuple[Regime, ...] = ("decode", "mixed", "prefill", "saturated")
_NUM_REWEIGHTINGS = 8
_RIDGE = 1e-4
"""Against the size of a column: keeps terms that the steps cannot tell apart from trading places."""
_NUM_FOLDS = 5
_SATURATED_SHARE = 0.85
"""Of the sequence cap or of the KV cache in use: from there on a step counts as near saturation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedLoad:
    """The steps of one designed load, in order."""

    shapes: Sequence[StepShape]
    seconds: Array
    """[num_steps] from the start of each step to the start of the next."""
    is_saturated: npt.NDArray[np.bool_]
    """[num_steps] the sequence cap or the KV cache was nearly reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeError:
    """Relative errors on held-out steps."""

    median: float
    """Of the absolute error of a step (of a prompt with its neighbours)."""
    p90: float
    total: float
    """Predicted over measured time of all steps, less 1: what throughput is off by."""
    num_steps: int


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is fitted: single decode steps, and windows around prefills."""

    design: Array
    seconds: Array
    num_steps: npt.NDArray[np.int64]
    regimes: list[Regime]
    saturated: npt.NDArray[np.bool_]
    load: npt.NDArray[np.int64]


def fit_machine(loads: Sequence[TimedLoad]) -> tuple[MachineCost, dict[str, RegimeError]]:
    """The cost of a step, and its error by regime, cross-validated: a load is in the fit with all its steps or out."""
    rows = _rows_of(loads)
    fold = np.random.default_rng(0).permutation(len(loads))[rows.load] % _NUM_FOLDS
    predicted = np.empty(len(rows.seconds))
    for k in range(_NUM_FOLDS):
        inside, outside = fold != k, fold == k
        if outside.any() and inside.any():
            predicted[outside] = rows.design[outside] @ _solve(rows.design[inside], rows.seconds[inside])
        else:
            predicted[outside] = np.nan
    return cost_of(_solve(rows.design, rows.seconds)), _errors(rows, predicted)


def _rows_of(loads: Sequence[TimedLoad]) -> _Rows:
    parts: list[tuple[Array, float, int, Regime, bool, int]] = []
    for number, load in enumerate(loads):
        design = design_matrix(load.shapes)
        for window in windows(load.shapes):
            shapes = load.shapes[window]
            parts.append(
                (
                    design[window].sum(axis=0),
                    float(load.seconds[window].sum()),
                    len(shapes),
                    _regime(shapes),
                    bool(load.is_saturated[window].any()),
                    number,
                )
            )
    designs, seconds, counts, regimes, saturated, owners = zip(*parts, strict=True)
    return _Rows(
        design=np.array(designs),
        seconds=np.array(seconds),
        num_steps=np.array(counts),
        regimes=list(regimes),
        saturated=np.array(saturated),
        load=np.array(owners),
    )


def windows(shapes: Sequence[StepShape]) -> list[slice]:
    """Single decode steps, and runs of steps with prefills together with the step before; others are left out."""
    found: list[slice] = []
    end = 0  # of what has been taken or left out
    has_prefill = [bool(shape.prefills) for shape in shapes]
    for i in range(len(shapes)):
        if i < end:
            continue
        start, end = i, i + 1
        if end < len(shapes) and has_prefill[end]:
            end += 1
        if not has_prefill[end - 1]:
            found.append(slice(start, end))
            continue
        while end < len(shapes) and has_prefill[end]:
            end += 1
        found.append(slice(start, end))
        if end + 1 < len(shapes) and not has_prefill[end + 1]:
            end += 1  # the step after
    return found


def _regime(shapes: Sequence[StepShape]) -> Regime:
    if not any(shape.prefills for shape in shapes):
        return "decode"
    # A lone prompt and the decode after it is still a prefill: others must have waited for it to be a mix.
    return "mixed" if any(shape.num_decodes and shape.prefills for shape in shapes) else "prefill"


def _solve(design: Array, seconds: Array) -> Array:
    """Non-negative least squares on relative errors, robust against steps that something else slowed down.

    Coefficients cannot be negative: no work takes time away. Needs scipy.
    """
    from scipy.optimize import nnls

    weights = np.ones(len(seconds))
    num = design.shape[1]
    solution = np.zeros(num)
    for _ in range(_NUM_REWEIGHTINGS):
        rows = (weights / seconds)[:, None] * design
        ridge = np.diag(_RIDGE * np.sqrt((rows**2).sum(axis=0)))
        solution = nnls(np.vstack([rows, ridge]), np.concatenate([weights, np.zeros(num)]))[0]
        error = np.abs(design @ solution / seconds - 1.0)
        scale = max(1.5 * float(np.median(error)), 1e-3)
        weights = np.sqrt(1.0 / np.maximum(error / (2.0 * scale), 1.0))  # Huber: outliers count by their size only
    return np.asarray(solution, dtype=np.float64)


def _errors(rows: _Rows, predicted: Array) -> dict[str, RegimeError]:
    errors: dict[str, RegimeError] = {}
    names = np.array(rows.regimes)
    for regime in REGIMES:
        chosen = (rows.saturated if regime == "saturated" else names == regime) & np.isfinite(predicted)
        if not chosen.any():
            continue
        relative = np.abs(predicted[chosen] / rows.seconds[chosen] - 1.0)
        errors[regime] = RegimeError(
            median=round(float(np.median(relative)), 4),
            p90=round(float(np.quantile(relative, 0.9)), 4),
            total=round(float(predicted[chosen].sum() / rows.seconds[chosen].sum() - 1.0), 4),
            num_steps=int(rows.num_steps[chosen].sum()),
        )
    return errors

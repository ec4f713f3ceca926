"""Token lengths of a published run, from its stated means and the kind of its data set."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import stats

from workbench.services.evaluate_cells import Row, number
from workbench.services.evaluate_iog import is_iog, with_longest_late

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_SHAREGPT_LONGEST = {"input": 1024, "output": 2048}
"""vLLM's sampler leaves longer prompts and conversations out."""
_SHAREGPT_INPUT_CV = 1.2
_SHAREGPT_OUTPUT = (0.9, 2.7, 4.0)
"""Beta distribution, and its end in means. Many answers are a few words long (mean TPOT under load lies far above its
median) and the longest of 200 is about 3.6 means (published durations): a lognormal has neither."""


def published_lengths(row: Row, side: str, count: int) -> IntArray | None:
    """[count] tokens of the prompts (`input`) or answers (`output`); None where no mean is published.

    The sample is an even one (quantiles in random order) with exactly the stated mean, so that it adds no noise.
    """
    mean = number(row, f"{side}_len")
    if mean is None:
        return None
    kind = f"{row.get('len_dist') or ''} {row.get('dataset') or ''}".lower()
    rng = np.random.default_rng([7, side == "input", count])
    share = rng.permutation((np.arange(count) + 0.5) / count)
    if "uniform[0.8l" in kind:
        return _whole(mean * (0.8 + 0.2 * share))
    if "sharegpt" not in kind:
        return _whole(np.full(count, mean))
    if side == "input":
        sigma = float(np.sqrt(np.log(1.0 + _SHAREGPT_INPUT_CV**2)))
        lengths = stats.lognorm.ppf(share, sigma)
    else:
        a, b, end = _SHAREGPT_OUTPUT
        lengths = stats.beta.ppf(share, a, b) * end
        if is_iog(row):
            lengths = with_longest_late(lengths)
    return _whole(_with_mean(lengths, mean, _SHAREGPT_LONGEST[side]))


def _with_mean(lengths: FloatArray, mean: float, longest: float) -> FloatArray:
    """Scaled so that the mean is as stated with none over `longest`."""
    longest = max(longest, 2.0 * mean)
    scale = mean / float(lengths.mean())
    for _ in range(20):
        scale *= mean / float(np.clip(lengths * scale, 1.0, longest).mean())
    return np.clip(lengths * scale, 1.0, longest)


def _whole(lengths: FloatArray) -> IntArray:
    return np.maximum(np.rint(lengths), 1.0).astype(np.int64)

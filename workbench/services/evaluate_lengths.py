"""Token lengths of a published run, from its stated means and the kind of its data set."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy import stats

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_SHAREGPT_LONGEST = {"input": 1024, "output": 2048}
"""vLLM's sampler leaves longer prompts and conversations out."""
_SHAREGPT_INPUT_CV = 1.2
_SHAREGPT_OUTPUT = (0.9, 2.7, 4.0)
"""Beta distribution, and its end in means. Many answers are a few words long (mean TPOT under load lies far above its
median) and the longest of 200 is about 3.6 means (published durations): a lognormal has neither."""
_IOG_LONGEST = 0.83
"""Where the longest answer of IOG's 200 requests comes, as a share of their order, the same for every model: from its
durations, which end with it."""


def published_lengths(row: Mapping[str, str], side: str, count: int) -> IntArray | None:
    """[count] tokens of the prompts (`input`) or answers (`output`); None where no mean is published.

    The sample is an even one (quantiles in random order) with exactly the stated mean, so that it adds no noise.
    """
    try:
        mean = float(row.get(f"{side}_len") or "")
    except ValueError:
        return None
    if not np.isfinite(mean):
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
        if "IOG-Foundation" in row.get("source", ""):
            _swap(lengths, int(lengths.argmax()), int(_IOG_LONGEST * count))
    return _whole(_with_mean(lengths, mean, _SHAREGPT_LONGEST[side]))


def _swap(lengths: FloatArray, i: int, k: int) -> None:
    lengths[[i, k]] = lengths[[k, i]]


def _with_mean(lengths: FloatArray, mean: float, longest: float) -> FloatArray:
    """Scaled so that the mean is as stated with none over `longest`."""
    longest = max(longest, 2.0 * mean)
    scale = mean / float(lengths.mean())
    for _ in range(20):
        scale *= mean / float(np.clip(lengths * scale, 1.0, longest).mean())
    return np.clip(lengths * scale, 1.0, longest)


def _whole(lengths: FloatArray) -> IntArray:
    return np.maximum(np.rint(lengths), 1.0).astype(np.int64)

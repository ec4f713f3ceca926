"""When the requests of a published run at a rate were sent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_IOG_SEED = 42
"""Of IOG's script (`run_benchmark.sh`)."""


def published_arrivals(row: Mapping[str, str], arrival_s: FloatArray, rate: float) -> FloatArray:
    """[count] seconds, from Poisson arrivals of about that rate (requests per second).

    vLLM's client scales its gaps so that the last request leaves when the rate says. That of 0.8 took numpy's as they
    came: with IOG's seed the last of 200 leaves after 187.6 / rate, which its published durations show.
    """
    count = len(arrival_s)
    if "IOG-Foundation" in row.get("source", ""):
        gaps_s = np.random.RandomState(_IOG_SEED).gamma(1.0, 1.0 / rate, count)
        return np.concatenate([[0.0], np.cumsum(gaps_s)[:-1]])
    return arrival_s * (count / rate / arrival_s[-1]) if arrival_s[-1] > 0 else arrival_s

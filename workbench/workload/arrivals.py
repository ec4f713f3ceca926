"""Arrival times of the generated processes (traces come from `workbench.workload.traces`).

Nothing is rescaled: the realised rate differs from the stated one by chance, and the summary says by how much.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from workbench.scenario.arrivals import (
    AllAtOnce,
    ArrivalSpec,
    ClosedLoop,
    ConstantArrivals,
    DiurnalArrivals,
    GammaArrivals,
    OnOffArrivals,
    PoissonArrivals,
    RampArrivals,
    StagesArrivals,
    TraceArrivals,
)
from workbench.scenario.errors import ScenarioError

FloatArray = npt.NDArray[np.float64]

MAX_REQUESTS = 50_000_000
"""More than this is a slip of the pen, not a load."""
_PIECES_PER_PERIOD = 96


def draw_arrivals(
    arrivals: ArrivalSpec, num_requests: int | None, duration_s: float | None, rng: np.random.Generator
) -> FloatArray:
    """Ascending arrival times, s; ends at `num_requests` or before `duration_s`, whichever comes first.

    In a closed loop arrivals are decided during the run: all are 0 here.
    """
    match arrivals:
        case AllAtOnce() | ClosedLoop():
            assert num_requests is not None
            return np.zeros(num_requests)
        case ConstantArrivals():
            count = _count(arrivals.rate, num_requests, duration_s, slack=1.0)
            return _bounded(np.arange(count) / arrivals.rate, num_requests, duration_s)
        case PoissonArrivals():
            return _renewal(arrivals.rate, 1.0, num_requests, duration_s, rng)
        case GammaArrivals():
            return _renewal(arrivals.rate, arrivals.burstiness, num_requests, duration_s, rng)
        case RampArrivals():
            profile = [(arrivals.duration, arrivals.start_rate, arrivals.end_rate)]
        case StagesArrivals():
            profile = [(stage.duration, stage.rate, stage.rate) for stage in arrivals.stages]
        case OnOffArrivals():
            period = [(arrivals.on, arrivals.rate, arrivals.rate), (arrivals.off, arrivals.off_rate, arrivals.off_rate)]
            return _periodic(period, num_requests, duration_s, rng)
        case DiurnalArrivals():
            return _periodic(_day(arrivals), num_requests, duration_s, rng)
        case TraceArrivals():
            raise TypeError("the arrival times of a trace are read, not drawn")
    return _bounded(_varying_poisson(profile, rng), num_requests, duration_s)


def _count(rate: float, num_requests: int | None, duration_s: float | None, *, slack: float) -> int:
    """How many arrivals to draw so that the bound is reached."""
    bounds = [] if num_requests is None else [float(num_requests)]
    if duration_s is not None:
        bounds.append(rate * duration_s * slack + 1)
    if min(bounds) > MAX_REQUESTS:
        raise ScenarioError(
            f"workload: gives about {min(bounds):.3g} requests (at most {MAX_REQUESTS}). Lower the rate or the duration"
        )
    return math.ceil(min(bounds))


def _bounded(times: FloatArray, num_requests: int | None, duration_s: float | None) -> FloatArray:
    if duration_s is not None:
        times = times[times < duration_s]
    return times if num_requests is None else times[:num_requests]


def _renewal(
    rate: float, shape: float, num_requests: int | None, duration_s: float | None, rng: np.random.Generator
) -> FloatArray:
    """Gamma gaps of mean 1 / rate; the same draws whatever the bound, so that a longer run extends a shorter one."""
    target = _count(rate, num_requests, duration_s, slack=1.0)
    pieces: list[FloatArray] = []
    total, last = 0, 0.0
    while total < target or (duration_s is not None and last < duration_s and num_requests is None):
        gaps = rng.gamma(shape, 1.0 / (rate * shape), size=4096)
        times = last + np.cumsum(gaps)
        pieces.append(times)
        total, last = total + len(times), float(times[-1])
        if total > MAX_REQUESTS + 4096:
            break
    return _bounded(np.concatenate(pieces), num_requests, duration_s)


def _varying_poisson(profile: list[tuple[float, float, float]], rng: np.random.Generator) -> FloatArray:
    """Poisson with a piecewise linear rate, by inversion: unit-rate arrivals mapped through the integrated rate."""
    times: list[FloatArray] = []
    start_s, carry = 0.0, float(rng.exponential())
    for duration_s, rate_0, rate_1 in profile:
        mass = (rate_0 + rate_1) / 2 * duration_s
        _count(mass, None, 1.0, slack=1.0)
        marks: list[float] = []
        while carry < mass:
            marks.append(carry)
            carry += float(rng.exponential())
        carry -= mass
        times.append(start_s + _inverse_mass(np.array(marks), duration_s, rate_0, rate_1))
        start_s += duration_s
    return np.concatenate(times) if times else np.zeros(0)


def _periodic(
    period: list[tuple[float, float, float]],
    num_requests: int | None,
    duration_s: float | None,
    rng: np.random.Generator,
) -> FloatArray:
    """Poisson whose rate repeats; a longer run extends a shorter one."""
    length_s = sum(duration for duration, _, _ in period)
    mass = sum((rate_0 + rate_1) / 2 * duration for duration, rate_0, rate_1 in period)
    _count(mass / length_s, num_requests, duration_s, slack=1.0)
    marks: list[FloatArray] = []
    total, last = 0, 0.0
    # Unit-rate arrivals until the bound, in periods (of mass each); then all are mapped at once.
    while (num_requests is None or total < num_requests) and (
        duration_s is None or last // mass * length_s <= duration_s
    ):
        drawn = last + np.cumsum(rng.exponential(size=4096))
        marks.append(drawn)
        total, last = total + len(drawn), float(drawn[-1])
        if total > MAX_REQUESTS + 4096:
            break
    unit = np.concatenate(marks) if marks else np.zeros(0)
    cycle = np.floor(unit / mass)
    within = unit - cycle * mass
    times = cycle * length_s + _inverse_profile(period, within)
    return _bounded(times, num_requests, duration_s)


def _inverse_profile(profile: list[tuple[float, float, float]], mass: FloatArray) -> FloatArray:
    """Times at which the integrated rate of the pieces reaches `mass`."""
    masses = np.array([(rate_0 + rate_1) / 2 * duration for duration, rate_0, rate_1 in profile])
    ends = np.cumsum(masses)
    starts_s = np.concatenate([[0.0], np.cumsum([duration for duration, _, _ in profile])])
    piece = np.minimum(np.searchsorted(ends, mass, side="right"), len(profile) - 1)
    times = np.zeros(len(mass))
    for index, (duration, rate_0, rate_1) in enumerate(profile):
        rows = piece == index
        inside = np.maximum(mass[rows] - (ends[index] - masses[index]), 0.0)
        times[rows] = starts_s[index] + _inverse_mass(inside, duration, rate_0, rate_1)
    return times


def _day(arrivals: DiurnalArrivals) -> list[tuple[float, float, float]]:
    """The cosine in straight pieces; their ends lie on it and their mean is the stated rate."""
    edges = np.linspace(0.0, arrivals.period, _PIECES_PER_PERIOD + 1)
    swing = arrivals.peak_to_mean - 1
    rates = arrivals.mean_rate * (1 + swing * np.cos(2 * np.pi * (edges - arrivals.peak_at) / arrivals.period))
    rates = np.maximum(rates, 0.0)
    width = arrivals.period / _PIECES_PER_PERIOD
    return [(width, float(low), float(high)) for low, high in itertools.pairwise(rates)]


def _inverse_mass(mass: FloatArray, duration_s: float, rate_0: float, rate_1: float) -> FloatArray:
    """Time x at which the integral of rate_0 + slope * x reaches `mass`."""
    slope = (rate_1 - rate_0) / duration_s
    # The root of slope/2 x^2 + rate_0 x = mass in the form that is stable for a slope near 0.
    root = np.sqrt(np.maximum(rate_0**2 + 2 * slope * mass, 0.0))
    return np.minimum(2 * mass / np.maximum(rate_0 + root, 1e-300), duration_s)

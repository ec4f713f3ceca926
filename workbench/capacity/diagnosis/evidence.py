"""What a diagnosis looks at: one frozen record, whatever it was read from. None = the source does not tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

_MORE_SERVED = 1.4
_MORE_OF_A_BATCH = 1.1
"""A batch is judged by the time to its end alone, and no chance of arrivals is in it."""

Column = npt.NDArray[np.float64]
"""One value per sample; nan where a sample lacks it."""


def _nothing() -> Column:
    return np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The engine's load over time, samples of equal weight in order of time."""

    running: Column = field(default_factory=_nothing)
    """Requests holding KV blocks."""
    waiting: Column = field(default_factory=_nothing)
    kv_usage: Column = field(default_factory=_nothing)
    """0 to 1."""
    prompt_rate: Column = field(default_factory=_nothing)
    """Prompt tokens per second; empty where unknown."""
    output_rate: Column = field(default_factory=_nothing)
    """Output tokens per second; empty where unknown."""

    def __len__(self) -> int:
        return len(self.running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The engine's parameters, as far as known."""

    max_num_seqs: int | None = None
    is_cap_stated: bool = False
    """The user set `max_num_seqs`; a default that is never reached is nobody's mistake."""
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    is_num_blocks_stated: bool = False
    """The user set the size of the cache: what leaves more memory does not enlarge it."""
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    """Of the weights."""
    tensor_parallel_size: int | None = None
    device_memory: int | None = None
    """Bytes that the scenario gives the engine; None where the device's own memory is the limit."""
    prefix_caching: bool | None = None
    reserves_max_len: bool = False
    """`kv_policy: contiguous`: every request holds `max_model_len` positions."""
    full_len_concurrency: float | None = None
    """Requests of `max_model_len` that fit at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The requests and what they saw, seconds and tokens."""

    num_requests: int | None = None
    is_batch: bool = False
    """All arrived at once: a queue that only shrinks is the plan, not a symptom."""
    meets_slo: bool | None = None
    """None without an SLO."""
    missed: tuple[str, ...] = ()
    """Names of the missed limits, with value and limit."""
    misses_tpot: bool = False
    misses_ttft: bool = False
    arrival_rate: float | None = None
    completion_rate: float | None = None
    """Completed requests per second of the whole run."""
    busy_share: float | None = None
    """Of the time while requests arrived, that in which a step ran."""
    slowdown: float | None = None
    """Median time per output token (first included) of the last third of arrivals / of the first third."""
    prompt_p50: float | None = None
    prompt_p99: float | None = None
    total_mean: float | None = None
    """Prompt + output."""
    total_p95: float | None = None
    total_max: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    queue_p95_s: float | None = None
    tpot_p95_s: float | None = None
    longest_prefill_step_share: float | None = None
    """Of the time of steps with decodes, the part in steps that also prefill."""
    client_lag_p99_s: float | None = None
    is_client_capped: bool = False
    """The scenario lets the client hold requests back (`max_concurrency`)."""
    client_cap: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Why busy steps admitted nobody else."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """Causes of `engine.stats.AdmissionStop` -> share of the busy steps in which something waited."""
    decode_share: float | None = None
    """Of the tokens scheduled in steps that the budget ended: the decodes' part."""
    busy_shares: Mapping[str, float] = field(default_factory=dict)
    """The same over all busy steps, whether something waited or not."""
    blocked_free_share: float | None = None
    """Of the blocks, those free when the first of the queue did not fit (mean)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemptions:
    count: int = 0
    recomputed_share: float | None = None
    """Of all tokens computed, those computed again."""
    is_since_start: bool = False
    """The count is a counter since the server's start, not of an observed span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What prompts have in common, found from the prompts themselves."""

    potential: float
    """Of the prompt tokens, those in runs that an earlier prompt has too, wherever they stand."""
    first_difference: int
    """First position at which two prompts that share most differ."""
    tokens: tuple[int, int]
    """Their token ids there."""
    common_from: int
    """Position in the later prompt at which the common run starts."""
    common_tokens: int
    requests: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixFacts:
    hit_rate: float | None = None
    are_prompts_known: bool = False
    sharing: Sharing | None = None
    """None where the prompts have nothing in common, or are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    device_bytes: int | None = None
    activation_bytes: int | None = None
    """Peak of a step: the simulation's estimate or vLLM's profile run."""
    out_of_memory: str | None = None
    """What was said when memory ran out."""
    ran_before: bool = False
    """It ran out under load, after a start that worked."""
    start_error: str | None = None
    longest_len: int | None = None
    """Longest `max_model_len` that the failed start would have allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """Short requests behind long prompts."""

    short_ttft_p95_s: float
    """Of prompts up to the median length."""
    short_ttft_free_s: float
    """Median of those that met no long prompt."""
    overlap: float
    """Of the slow short requests' time to first token, the part in which a long prompt was being computed or headed
    the queue."""
    long_tokens: int
    """Prompts at least this long count as long."""
    num_long: int
    num_short: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The same load with one parameter changed, replayed on the simulated device."""

    parameter: str
    before: float | str
    value: float | str
    ttft_p95_s: tuple[float | None, float | None]
    """As it was, and with the change."""
    short_ttft_p95_s: tuple[float | None, float | None]
    completion_rate: tuple[float | None, float | None]
    cures_slo: bool = False
    """The SLO was missed and is kept with the change."""
    is_batch: bool = False

    @property
    def helps(self) -> bool:
        """The SLO is kept, or the time to first token falls to a third, or much more is served; anything milder is a
        queue that is put off."""
        before, after = self.completion_rate
        more = _MORE_OF_A_BATCH if self.is_batch else _MORE_SERVED
        is_faster = before is not None and after is not None and after >= more * before
        if self.is_batch:
            return is_faster
        return self.cures_slo or _falls(self.ttft_p95_s, 1 / 3) or is_faster

    @property
    def helps_short(self) -> bool:
        """At least halves that of short prompts."""
        return _falls(self.short_ttft_p95_s, 1 / 2)


def _falls(pair: tuple[float | None, float | None], factor: float) -> bool:
    return pair[0] is not None and pair[1] is not None and pair[1] <= factor * pair[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts:
    """Of several engines behind a router."""

    num_replicas: int = 1
    """At the beginning."""
    rate_limit_per_s: float | None = None
    """Limits each client, each class or all together, as the scenario says."""
    not_served: Mapping[str, int] = field(default_factory=dict)
    """Reason -> requests: `nobody_up`, `lost`, `rate_limit`, `queue_limit`, `deadline_foreseen`, `deadline_passed`."""
    failures: tuple[str, ...] = ()
    """Each with its time."""
    retry: str = "all"
    has_pools: bool = False
    scales: bool = False
    """The number of replicas follows the queue."""

    @property
    def parameter(self) -> str:
        """What says how many replicas there are."""
        return "autoscaling.min_replicas" if self.scales else "replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that rules may look at."""

    source: str
    """`run`, `vllm log`, `metrics dump`."""
    timeline: Timeline = field(default_factory=Timeline)
    limits: Limits = field(default_factory=Limits)
    traffic: Traffic = field(default_factory=Traffic)
    fleet: FleetFacts = field(default_factory=FleetFacts)
    admission: Admission | None = None
    preemptions: Preemptions = field(default_factory=Preemptions)
    prefix: PrefixFacts = field(default_factory=PrefixFacts)
    memory: Memory = field(default_factory=Memory)
    blocking: Blocking | None = None
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be looked at."""

    def trial(self, parameter: str) -> Trial | None:
        return next((trial for trial in self.trials if trial.parameter == parameter), None)

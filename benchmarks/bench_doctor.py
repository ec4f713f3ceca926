"""Does the doctor's first remedy help? Unhealthy simulated runs, the remedy applied, the symptom measured again.

python benchmarks/bench_doctor.py [--json] [--seed N] [--constructed N] [--random N]

Constructed runs have a planted cause each; random ones draw model, GPU, engine, lengths and rate until a limit is
missed. The first change of the first finding is applied as `workbench run --set` would, and the run is repeated with
its own seed and with another one, which the doctor has not seen.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from workbench.loadgen.errors import RunFailed
from workbench.scenario import Scenario, ScenarioError
from workbench.scenario.loader import parse_scenario
from workbench.services.doctor import diagnose
from workbench.services.doctor_remedies import MORE_IS_BETTER
from workbench.services.doctor_replay import Replay
from workbench.services.evaluate import RunResult, run_scenario, store_run

_QWEN, _QWEN_3, _LLAMA, _LLAMA_13B = (
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-8B",
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-2-13b-hf",
)
_OTHER_SEED = 1000
_MOST_DRAWS = 50
Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Treated:
    """One unhealthy run and its first remedy."""

    name: str
    finding: str | None
    remedy: tuple[str, ...]
    metric: str | None
    helps: bool
    """The symptom improves."""
    worsens: bool
    """The SLO attainment gets worse."""
    helps_other_seed: bool
    worsens_other_seed: bool


def main() -> None:
    """Treat all runs and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--constructed", type=int, default=40)
    parser.add_argument("--random", type=int, default=20)
    given = parser.parse_args()
    found = treat_all(given.seed, given.constructed, given.random)
    if given.json:
        print(json.dumps({"seed": given.seed, **shares(found), "runs": [asdict(each) for each in found]}, indent=2))
        return
    for each in found:
        mark = ("worse" if each.worsens else "helps") if each.helps else "no help"
        other = ("worse" if each.worsens_other_seed else "helps") if each.helps_other_seed else "no help"
        print(f"{each.name}: {each.finding}, {' '.join(each.remedy) or 'no remedy'}: {mark}; other seed: {other}")
    print(", ".join(f"{name} {value:.1%}" for name, value in shares(found).items()))


def shares(found: list[Treated]) -> dict[str, float]:
    """Of all runs, those that the first remedy helps and makes worse."""
    names = ("helps", "worsens", "helps_other_seed", "worsens_other_seed")
    return {name: sum(getattr(each, name) for each in found) / len(found) for name in names}


def treat_all(seed: int, num_constructed: int, num_random: int) -> list[Treated]:
    """Treat that many runs of both kinds."""
    rng = random.Random(seed)
    makers = list(KINDS.items())
    planned = [makers[index % len(makers)] for index in range(num_constructed)]
    planned += [("random", any_load)] * num_random
    return [treat(name, _sick(make, rng)) for name, make in planned]


def treat(name: str, run: RunResult) -> Treated:
    """Diagnose a run, apply the first change, run again."""
    with tempfile.TemporaryDirectory() as folder:
        findings = diagnose(store_run(Path(folder) / "run", run)).findings
    change = findings[0].changes[0] if findings and findings[0].changes else None
    if change is None or not change.settings:
        code = findings[0].code if findings else None
        return Treated(name=name, finding=code, remedy=(), metric=None, helps=False, worsens=False,
                       helps_other_seed=False, worsens_other_seed=False)  # fmt: skip
    metric = change.effect.metric if change.effect is not None else "ttft_s.p95"
    print(f"{name}: {findings[0].code}, {change}", file=sys.stderr)
    same = _outcome(run, change.settings, metric, None)
    other = _outcome(run, change.settings, metric, _OTHER_SEED + run.seed)
    return Treated(name=name, finding=findings[0].code, remedy=change.settings, metric=metric, helps=same[0],
                   worsens=same[1], helps_other_seed=other[0], worsens_other_seed=other[1])  # fmt: skip


def _outcome(run: RunResult, settings: tuple[str, ...], metric: str, seed: int | None) -> tuple[bool, bool]:
    """(the symptom improves, the attainment gets worse)."""
    before = run if seed is None else run_scenario(run.scenario, seed=seed)
    text = json.dumps(run.scenario.model_dump(mode="json"))
    after = run_scenario(parse_scenario(text, overrides=settings), seed=run.seed if seed is None else seed)
    old, new = _figure(before, metric), _figure(after, metric)
    kept = before.summary.overall.slo_attainment, after.summary.overall.slo_attainment
    is_worse = kept[0] is not None and kept[1] is not None and kept[1] < kept[0]
    if old is None or new is None:
        return False, is_worse
    return (new > old if metric in MORE_IS_BETTER else new < old), is_worse


def _figure(run: RunResult, metric: str) -> float | None:
    return Replay(record=run.record, summary=run.summary).figure(metric)


def _sick(make: Callable[[random.Random], Document], rng: random.Random) -> RunResult:
    """The first that runs and misses a limit (a batch without limits is sick as it is planted)."""
    for _ in range(_MOST_DRAWS):
        document = make(rng)
        try:
            run = run_scenario(Scenario.model_validate(document), {})
        except (EngineError, RunFailed, ScenarioError, ValueError):
            continue
        if run.summary.meets_slo is not True:
            return run
    raise RuntimeError(f"{make.__name__}: no unhealthy run in {_MOST_DRAWS} draws")


def _document(rng: random.Random, *classes: Document, **more: Any) -> Document:
    engine = {"max_model_len": more.pop("window", 4096), **more.pop("engine", {})}
    target = {"kind": "simulated", "gpu": more.pop("gpu", "a100-80g-sxm"), **more.pop("target", {})}
    arrivals = more.pop("arrivals", None) or {"kind": "poisson", "rate": more.pop("rate", 4.0)}
    return {
        "name": "sick",
        "seed": rng.randrange(1, 900),
        "model": more.pop("model", _QWEN),
        "engine": engine,
        "target": target,
        "workload": {"num_requests": more.pop("count", 150), "arrivals": arrivals, "classes": list(classes)},
        "slo": more.pop("slo", {"ttft_p95": "1s"}),
    }


def _kind(low: int, high: int, out_low: int, out_high: int, name: str = "all", weight: float = 1.0) -> Document:
    lengths = {"kind": "uniform", "low": low, "high": high}, {"kind": "uniform", "low": out_low, "high": out_high}
    return {"name": name, "weight": weight, "input_tokens": lengths[0], "output_tokens": lengths[1]}


def small_cache(rng: random.Random) -> Document:
    return _document(
        rng, _kind(200, 900, 50, 300), rate=rng.uniform(6, 12), engine={"num_blocks": rng.randrange(280, 700)}
    )


def low_cap(rng: random.Random) -> Document:
    return _document(
        rng, _kind(100, 800, 50, 400), rate=rng.uniform(4, 8), engine={"max_num_seqs": rng.randrange(3, 12)}
    )


def small_budget(rng: random.Random) -> Document:
    engine = {"max_num_batched_tokens": rng.choice([64, 128, 192]), "max_num_seqs": 64}
    return _document(rng, _kind(1500, 3000, 50, 150), rate=rng.uniform(3, 6), engine=engine)


def large_budget(rng: random.Random) -> Document:
    engine = {"max_num_batched_tokens": rng.choice([8192, 16384])}
    return _document(
        rng,
        _kind(3000, 8000, 50, 150),
        window=16384,
        rate=rng.uniform(0.8, 1.6),
        engine=engine,
        slo={"ttft_p95": "6s", "tpot_p95": f"{rng.randrange(20, 45)}ms"},
    )


def overload(rng: random.Random) -> Document:
    return _document(rng, _kind(300, 2500, 50, 250), rate=rng.uniform(30, 70), count=500)


def varying_header(rng: random.Random) -> Document:
    prefix = {"tokens": rng.randrange(1000, 2400), "position": "behind_header", "header_tokens": 16}
    return _document(
        rng, {**_kind(60, 300, 30, 100), "shared_prefix": prefix}, rate=rng.uniform(12, 25), count=400,
        slo={"ttft_p95": "300ms"},
    )  # fmt: skip


def long_before_short(rng: random.Random) -> Document:
    short, long = _kind(50, 300, 20, 80, "short", 95), _kind(14000, 30000, 30, 60, "long", rng.uniform(2, 5))
    return _document(rng, short, long, window=32768, rate=rng.uniform(3, 6), count=300)


def outgrown_cache(rng: random.Random) -> Document:
    return _document(
        rng, _kind(50, 200, 800, 1800), model=_LLAMA_13B, rate=rng.uniform(2, 4), count=100,
        slo={"tpot_p95": "35ms"},
    )  # fmt: skip


def reserved_window(rng: random.Random) -> Document:
    return _document(
        rng, _kind(200, 900, 50, 300), model=_LLAMA_13B, rate=rng.uniform(3, 5), engine={"kv_policy": "contiguous"}
    )


def small_card(rng: random.Random) -> Document:
    return _document(
        rng, _kind(800, 2500, 100, 300), model=_LLAMA_13B, gpu="a100-40g", rate=rng.uniform(1.5, 3), count=200,
        slo={"ttft_p95": "2s", "tpot_p95": "80ms"},
    )  # fmt: skip


def capped_batch(rng: random.Random) -> Document:
    return _document(
        rng, _kind(50, 500, 50, 400), arrivals={"kind": "all_at_once"}, count=300, slo=None,
        engine={"max_num_seqs": rng.randrange(8, 40)}, model=rng.choice([_QWEN, _QWEN_3, _LLAMA]),
    )  # fmt: skip


def strict_tpot(rng: random.Random) -> Document:
    return _document(
        rng, _kind(100, 600, 100, 400), rate=rng.uniform(10, 18), count=400,
        slo={"ttft_p95": "3s", "tpot_p95": f"{rng.randrange(13, 20)}ms"},
    )  # fmt: skip


def low_rate_limit(rng: random.Random) -> Document:
    limit = {"requests_per_s": rng.uniform(2, 4), "burst": 4, "per": "all"}
    return _document(rng, _kind(100, 600, 50, 200), rate=8, target={"replicas": 2, "rate_limit": limit})


def lost_replica(rng: random.Random) -> Document:
    failure = {"replica": 0, "at_s": rng.uniform(5, 20), "restart_after_s": 8}
    return _document(rng, _kind(100, 600, 50, 200), rate=4, target={"failures": [failure]})


KINDS: dict[str, Callable[[random.Random], Document]] = {
    make.__name__: make
    for make in (
        small_cache, low_cap, small_budget, large_budget, overload, varying_header, long_before_short, outgrown_cache,
        reserved_window, small_card, capped_batch, strict_tpot, low_rate_limit, lost_replica,
    )
}  # fmt: skip


def any_load(rng: random.Random) -> Document:
    """Anything that the catalogue knows, mostly too much of it."""
    engine = {
        "max_num_seqs": rng.choice([4, 8, 16, 32, 64, 128, 256]),
        "max_num_batched_tokens": rng.choice([256, 512, 1024, 2048, 4096, 8192, 16384]),
        "gpu_memory_utilization": rng.choice([0.8, 0.9, 0.92, 0.95]),
    }
    prompt, output = int(2 ** rng.uniform(6, 12)), int(2 ** rng.uniform(4, 9))
    kinds = [_kind(max(1, prompt // 2), prompt * 2, max(1, output // 2), output * 2, "main", 9)]
    if rng.random() < 0.4:
        kinds.append(_kind(6000, 12000, 20, 200, "long", 1))
    return _document(
        rng, *kinds, window=16384, model=rng.choice([_QWEN, _QWEN_3, _LLAMA, _LLAMA_13B]) if len(kinds) == 1 else _QWEN,
        gpu=rng.choice(["l40s", "a100-80g-sxm", "h100", "h200"]), engine=engine, rate=2 ** rng.uniform(0, 5),
        count=200, slo={"ttft_p95": f"{rng.choice([500, 1000, 3000])}ms", "tpot_p95": f"{rng.choice([20, 40, 80])}ms"},
    )  # fmt: skip


if __name__ == "__main__":
    main()

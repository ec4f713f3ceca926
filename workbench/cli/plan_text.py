"""A plan in the terminal: what it rests on, the answer, what to type next, the limits, the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any

from workbench.cli.console import limit_in_words, number, out, seconds, write
from workbench.workload.account import ImportAccount


def render_plan(values: Any, path: Path | None) -> None:
    """Print a plan; `path` is the file that it was written to."""
    write(values["basis_sentence"])
    write(_answer(values))
    for warning in values["warnings"]:
        write(f"Beware: {warning}", indent=8)
    out.print()
    for line in (*_next(values, path), "", *_limits(values["limits"]), "", *_evidence(values)):
        write(line, indent=16)
    for lines in (_alternatives(values), _fleets(values["fleets"])):
        for line in lines:
            out.print(line, markup=False, soft_wrap=True)


def _answer(values: Any) -> str:
    fleet, cost = values["replicas"], values["cost"]
    between = fleet["between"]
    count = f"{between[0]} or {between[1]}" if between else str(fleet["minimum"])
    several = "" if count == "1" else "s"
    load = f"{values['concurrency']} users" if values["concurrency"] else f"{values['rate_per_s']:g} requests/s"
    price = "" if cost["usd_per_hour"] is None else f", ${cost['usd_per_hour']:g} per hour"
    size = values["basis"]["tp"] or 1
    gpus = f"{size} x {values['gpu']}" if size > 1 else values["gpu"]
    return (
        f"Answer: {count} replica{several} of {gpus} carry {load} within the limits{price}; "
        f"{fleet['with_headroom']} with {fleet['headroom']:.0%} headroom, {fleet['with_spare']} to survive the loss of "
        f"one. By the model's error it may be {fleet['low']} to {fleet['high'] or 'any number'}."
    )


def _next(values: Any, path: Path | None) -> Iterator[str]:
    yield f"Parameters      {' '.join(f'{name}={value}' for name, value in values['instance']['params'].items())}"
    yield f"Serve           {values['serve_command']}"
    if path is None:
        yield "Next            the same with --write plan.yaml, then workbench export plan.yaml --format k8s"
    else:
        yield f"Next            workbench export {path} --format k8s; workbench run {path}; workbench sweep {path}"


def _limits(limits: Any) -> Iterator[str]:
    for each in limits:
        yield f"Limit           {limit_in_words(each)}"


def _evidence(values: Any) -> Iterator[str]:
    tokens, kv, one, fleet = (values[name] for name in ("tokens", "kv_budget", "instance", "replicas"))
    yield f"  Requests      {ImportAccount(**values['requests']).describe()}"
    yield f"1 Tokens        {tokens['num_requests']:,} requests; " + "; ".join(
        f"{name} mean {tokens[name]['mean']:,.0f}, p95 {tokens[name]['p95']:,.0f}, max {tokens[name]['max']:,}"
        for name in ("input", "output")
    )
    at = kv["concurrency"]
    yield (
        f"2 KV cache      {kv['kv_tokens']:,} tokens in {kv['num_blocks']:,} blocks, {kv['bytes_per_token']:,} bytes "
        f"each token; holds {at['at_mean']:,.0f} mean requests, {at['at_p95']:,.0f} of P95 length, "
        f"{at['at_max_model_len']:,.0f} of {kv['max_model_len']:,}"
    )
    rate, inside = one["sustainable_rate_per_s"], one["concurrency"]
    yield f"3 One instance  sustains {_figure(rate)} requests/s within the limits, {_figure(inside)} requests inside"
    yield f"                source: {rate['source']}"
    yield f"                bottleneck: {one['bottleneck']}"
    yield f"4 Replicas      {fleet['minimum']}: {fleet['explanation']}"
    for run in fleet["simulated"]:
        yield f"                {_simulated(run)}"
    yield from _cost(values["cost"])
    if values["day"]:
        yield from _day(values["day"])


def _simulated(run: Any) -> str:
    draws = "" if run["draws"] == 1 else f" in {run['draws_held']} of {run['draws']} draws of the load"
    head = f"{run['replicas']} at {run['rate_per_s']:g}/s: "
    if not run["holds"]:
        return f"{head}does not hold{draws and ', holds' + draws}; {run['reason']}"
    latency = f"TTFT p95 {seconds(run.get('ttft_s.p95'))}, TPOT p95 {seconds(run.get('tpot_s.p95'))}"
    return f"{head}holds{draws}, {latency}"


def _cost(cost: Any) -> Iterator[str]:
    if cost["usd_per_hour"] is None:
        yield f"  Cost          {cost['source']}"
    else:
        source = shorten(cost["source"], 100, placeholder=" …")
        yield (
            f"  Cost          ${cost['usd_per_hour']:g} per hour, ${cost['usd_per_million_tokens']:g} per million "
            f"tokens at ${cost['usd_per_gpu_hour']:g} per GPU and hour ({source})"
        )
    if cost["kwh_per_hour_at_most"] is not None:
        yield (
            f"  Energy        at most {cost['kwh_per_hour_at_most']:g} kWh per hour, "
            f"{cost['kwh_per_million_tokens_at_most']:g} kWh per million tokens ({cost['energy_source']})"
        )


def _day(day: Any) -> Iterator[str]:
    steps = ", ".join(f"{step['from_hour']:g} h {step['rate_per_s']:g}/s: {step['replicas']}" for step in day["steps"])
    yield f"  Day           replicas from hour on: {steps}"
    for name in ("fixed", "scaled"):
        usd = day[f"usd_per_day_{name}"]
        price = "" if usd is None else f"${usd:g} per day, "
        yield f"                {name}: {price}{day[f'replica_hours_{name}']:g} replica-hours"
    yield f"                {day['source']}"


def _figure(figure: Any) -> str:
    return f"{figure['value']:g} ({figure['low']:g} to {figure['high']:g})"


def _alternatives(values: Any) -> Iterator[str]:
    rows, refused = values["alternatives"], values["does_not_fit"]
    if len(rows) > 1:
        yield ""
        yield "Deployments, each planned like the first (* = nothing here is both cheaper and faster)"
        yield (
            f"  {'':30} {'replicas':>8} {'GPUs':>4} {'$/hour':>7} {'$/M tok':>8} {'req/s/GPU':>9} {'req/$':>7} "
            f"{'TTFT p95':>9} {'TPOT p95':>9}"
        )
    for row in rows if len(rows) > 1 else ():
        count = f"{row['between'][0]} or {row['between'][1]}" if row["between"] else str(row["replicas"])
        yield (
            f"{'*' if row.get('is_pareto') else ' '} {row['name'][:30]:30} {count:>8} {row['num_gpus']:>4} "
            f"{number(row['usd_per_hour']):>7} {number(row['usd_per_million_tokens']):>8} "
            f"{number(row['sustainable_rate_per_gpu']):>9} {number(row['requests_per_usd']):>7} "
            f"{seconds(row['latency'].get('ttft_s.p95')):>9} {seconds(row['latency'].get('tpot_s.p95')):>9}"
        )
    prices = {row["gpu"]: row["price"] for row in rows if row["price"]["usd_per_gpu_hour"] is not None}
    for gpu, price in prices.items() if len(rows) > 1 else ():
        source = shorten(price["source"], 60, placeholder=" …")
        yield f"  {gpu}: ${price['usd_per_gpu_hour']:g} per GPU and hour, {source}"
    for each in refused:
        yield f"  does not fit: {each['name']}: {each['reason']} Remedy: {each['remedy']}"
    if values["not_planned"]:
        yield f"  not planned, out of time: {', '.join(values['not_planned'])}"
    if len(rows) == 1 or values["not_planned"]:
        yield "  compare more with --gpu all --tp 1,2,4 --quantization none,fp8"


def _fleets(rows: Any) -> Iterator[str]:
    if rows:
        yield ""
        yield "The same replicas run otherwise"
    for row in rows:
        latency = row["latency"]
        yield (
            f"  {row['name'][:40]:40} {'holds' if row['holds'] else 'misses':6} TTFT p95 "
            f"{seconds(latency.get('ttft_s.p95')):>9} TPOT p95 {seconds(latency.get('tpot_s.p95')):>9}"
        )

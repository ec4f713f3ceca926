"""`workbench plan`: flags and rendering."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer

from workbench.cli.console import number, seconds


def plan_command(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help="Scenario file with target kind simulated.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name in the catalogue, or a directory with a config.json.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Name in the catalogue, for example a100-80g-sxm.")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Recorded requests with arrival times.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second that the fleet must carry.")] = None,
    slo: Annotated[
        list[str] | None, typer.Option(metavar="A=B", help="ttft_p95=2s, tpot_p95=50ms; repeatable.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="GPUs that share the model (tensor parallel).")] = 1,
    quantization: Annotated[str | None, typer.Option(help="Weights: fp8, int8 or int4. Default: bfloat16.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache: fp8. Default: bfloat16.")] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(min=2, help="Longest prompt + output. Default: what the trace needs of the model's own."),
    ] = None,
    routing: Annotated[
        str | None, typer.Option(help="random, round_robin, least_loaded, least_kv or prefix_hash.")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(metavar="GPU=USD", help="Price of one GPU and hour; repeatable.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Override a value of the scenario, engine.max_num_seqs=64."),
    ] = None,
    no_alternatives: Annotated[bool, typer.Option("--no-alternatives", help="Leave out the comparison.")] = False,
    check: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="Replay a written plan against --endpoint; exit 1 if it fails.")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(metavar="URL", help="With --check: what was deployed.")] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="With --check: replicas behind the address; the load goes with it.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --check: environment variable that holds the key.")
    ] = None,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the plan as YAML for export.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Say how many replicas carry a load within its limits, at what cost, and how sure that is."""
    import math

    from workbench.capacity.cost import parse_prices
    from workbench.cli.console import err
    from workbench.services.plan import plan
    from workbench.services.plan_question import PlanQuestion

    if check is not None or endpoint is not None:
        from workbench.cli.plan_check import check_command

        given = {"SCENARIO": scenario, "--gpu": gpu, "--trace": trace, "--rate": rate, "--slo": slo, "--write": write}
        check_command(
            check,
            endpoint,
            given,
            model=model,
            api_key_env=api_key_env,
            replicas=replicas,
            overrides=overrides or [],
            as_json=as_json,
        )
        return
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise typer.BadParameter(f"--rate: must be over 0 (got {rate:g})")
    found = plan(
        PlanQuestion(
            scenario=scenario,
            overrides=overrides or (),
            model=model,
            gpu=gpu,
            trace=trace,
            rate_per_s=rate,
            slo=slo or (),
            tensor_parallel_size=tp,
            quantization=quantization,
            kv_cache_dtype=kv_dtype,
            routing=routing,
            settings={} if max_model_len is None else {"max_model_len": max_model_len},
            prices=parse_prices(price or []),
            with_alternatives=not no_alternatives,
        ),
        lambda text: err.print(text, markup=False),
    )
    if write is not None:
        from workbench.services.plan_file import write_plan

        write_plan(write, found)
    if as_json:
        from workbench.cli.main import print_json

        print_json(dict(found.values))
    else:
        _render(found.values)
        if write is not None:
            err.print(f"written: {write}", markup=False)


def _render(values: Any) -> None:
    from workbench.cli.console import out

    for line in _lines(values):
        out.print(line, markup=False)
    for line in _alternatives(values["alternatives"]) if values["alternatives"] else ():
        out.print(line, markup=False)
    for warning in values["warnings"]:
        out.print(f"warning: {warning}", markup=False)


def _lines(values: Any) -> Iterator[str]:
    from workbench.workload.account import ImportAccount

    tokens, kv, one, fleet, cost = (values[name] for name in ("tokens", "kv_budget", "instance", "replicas", "cost"))
    yield f"{values['model']} on {values['gpu']}, {values['rate_per_s']:g} requests/s"
    yield f"  Requests      {ImportAccount(**values['requests']).describe()}"
    yield ""
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
    yield "                with " + " ".join(f"{name}={value}" for name, value in one["params"].items())
    yield f"                binds {one['binds']}"
    yield (
        f"4 Replicas      {fleet['minimum']} at least ({fleet['low']} to {fleet['high'] or '?'} by the model's error), "
        f"{fleet['with_headroom']} with {fleet['headroom']:.0%} headroom, "
        f"{fleet['n_minus_1']} to survive the loss of one"
    )
    for run in fleet["simulated"]:
        yield f"                {_simulated(run)}"
    yield from _cost(cost)
    yield ""


def _simulated(run: Any) -> str:
    head = f"{run['replicas']} at {run['rate_per_s']:g}/s: "
    if not run["holds"]:
        return f"{head}does not hold, {run['reason']}"
    return f"{head}holds, TTFT p95 {seconds(run.get('ttft_s.p95'))}, TPOT p95 {seconds(run.get('tpot_s.p95'))}"


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


def _figure(figure: Any) -> str:
    return f"{figure['value']:g} ({figure['low']:g} to {figure['high']:g})"


def _alternatives(rows: Any) -> Iterator[str]:
    yield "Alternatives, by quick estimates (* = nothing here is both cheaper and faster)"
    names = f"{'replicas':>8} {'$/hour':>8} {'$/M tok':>9} {'TTFT p95':>9} {'TPOT p95':>9}"
    yield f"  {'':34} {'1 instance, req/s':24} {names}"
    for row in rows:
        rate, latency = row.get("sustainable_rate_per_s"), row.get("latency", {})
        head = f"{'*' if row.get('is_pareto') else ' '} {row['name'][:34]:34}"
        if not rate and not latency:
            yield f"{head} {row['source']}"
            continue
        yield (
            f"{head} {_figure(rate) if rate else '':24} {number(row.get('replicas')):>8} "
            f"{number(row.get('usd_per_hour')):>8} {number(row.get('usd_per_million_tokens')):>9} "
            f"{seconds(latency.get('ttft_s.p95')):>9} {seconds(latency.get('tpot_s.p95')):>9}"
        )

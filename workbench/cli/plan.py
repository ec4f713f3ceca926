"""`workbench plan`: flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.examples import example


def plan_command(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help="Scenario file with target kind simulated.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name in the catalogue, or a directory with a config.json.")] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(help="Catalogue name, several with commas to compare them, or all.")
    ] = None,
    tp: Annotated[
        list[str] | None, typer.Option(metavar="N,N", help="GPUs that share the model (tensor parallel). Default: 1.")
    ] = None,
    quantization: Annotated[
        list[str] | None,
        typer.Option(metavar="W,W", help="Weights: none, fp8, int8, int4. Default: what the model's name states."),
    ] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Recorded requests with arrival times.")] = None,
    isl: Annotated[int | None, typer.Option(min=1, help="Mean prompt tokens, instead of a trace.")] = None,
    osl: Annotated[int | None, typer.Option(min=1, help="Mean answer tokens, instead of a trace.")] = None,
    cv: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="Coefficient of variation of both lengths; 0: all alike.")
    ] = 0.0,
    rate: Annotated[float | None, typer.Option(help="Requests per second that the fleet must carry.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Users who each wait for an answer, instead of a rate.")
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="A=B", help="ttft_p95=2s, tpot_p95=50ms; of one class CLASS.ttft_p95=2s; repeatable."),
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache: fp8. Default: bfloat16.")] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Window. Default: the longest request's.")] = None,
    vllm_version: Annotated[
        str | None, typer.Option(metavar="X.Y", help="Whose scheduling is assumed. Default: 0.32.")
    ] = None,
    routing: Annotated[
        str | None, typer.Option(help="random, round_robin, least_loaded, least_kv or prefix_hash.")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(metavar="GPU=USD", help="Price of one GPU and hour; repeatable.")
    ] = None,
    day: Annotated[
        list[str] | None,
        typer.Option(metavar="H=R,H=R", help="Rates from hours on (0=4,8=20,18=40): cost per day, fixed and scaled."),
    ] = None,
    startup: Annotated[str, typer.Option(metavar="TIME", help="With --day: until a new replica answers.")] = "120s",
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
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan as YAML for export, run and sweep.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Say how many replicas carry a load within its limits, at what cost, and how sure that is."""
    import math
    import time

    from workbench.capacity.cost import parse_prices
    from workbench.cli.console import err
    from workbench.cli.signals import sigterm_as_interrupt
    from workbench.plan.plan import plan
    from workbench.plan.question import PlanQuestion
    from workbench.scenario.base import parse_duration

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
    try:
        startup_s = float(parse_duration(startup))
    except (ValueError, TypeError):
        raise typer.BadParameter(f"--startup: must be a duration such as 90s or 5m (got {startup!r})") from None
    began = time.monotonic()
    question = PlanQuestion(
        scenario=scenario,
        overrides=overrides or (),
        model=model,
        gpus=_words(gpu),
        tensor_parallel_sizes=[_size(word) for word in _words(tp)],
        quantizations=_words(quantization),
        trace=trace,
        input_tokens=isl,
        output_tokens=osl,
        cv=cv,
        rate_per_s=rate,
        concurrency=concurrency,
        slo=slo or (),
        kv_cache_dtype=kv_dtype,
        max_model_len=max_model_len,
        vllm_version=vllm_version,
        routing=routing,
        prices=parse_prices(price or []),
        day=day or (),
        startup_s=startup_s,
        with_alternatives=not no_alternatives,
    )
    with sigterm_as_interrupt():
        found = plan(question, lambda text: err.print(f"{time.monotonic() - began:5.1f} s  {text}", markup=False))
    if write is not None:
        from workbench.store.plans import write_plan

        write_plan(write, found.to_document())
    if as_json:
        from workbench.cli.main import print_json

        print_json(dict(found.values))
    else:
        from workbench.cli.plan_text import render_plan

        render_plan(found.values, write)


plan_command.__doc__ = f"""{plan_command.__doc__}

{
    example(
        "workbench plan --model Qwen2.5-7B --gpu a100-80g-sxm,l40s-48g --isl 1200 --osl 250 --cv 1 --rate 20 "
        "--slo ttft_p95=2s",
        "workbench plan --model Qwen2.5-7B --gpu l40s-48g --trace FILE.csv --rate 20 --slo ttft_p95=2s "
        "--write plan.yaml",
    )
}"""


def _words(texts: list[str] | None) -> list[str]:
    """Split repeated options and commas alike."""
    return [word.strip() for text in texts or () for word in text.split(",") if word.strip()]


def _size(word: str) -> int:
    if not word.isascii() or not word.isdigit() or not 1 <= int(word) <= 64:
        raise typer.BadParameter(f"--tp: must be whole numbers from 1 to 64 (got {word!r})")
    return int(word)

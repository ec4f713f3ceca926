"""`workbench plan`: flags and rendering."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


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
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the plan as YAML for export.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Say how many replicas carry a load within its limits, at what cost, and how sure that is."""
    import math

    from workbench.capacity.cost import parse_prices
    from workbench.cli.console import err
    from workbench.services.plan import plan
    from workbench.services.plan_question import PlanQuestion

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
            prices=parse_prices(price or []),
            with_alternatives=not no_alternatives,
        ),
        lambda text: err.print(text, markup=False),
    )
    if as_json:
        from workbench.cli.main import print_json

        print_json(dict(found.values))
    else:
        _render(found.values)


def _render(values: Any) -> None:
    from workbench.cli.console import out

    out.print(values)

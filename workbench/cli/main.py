"""`workbench`: parses, calls a use case, renders. Heavy imports happen inside commands, so that --help stays fast."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli.budget import budget_command
from workbench.cli.compare import compare_command
from workbench.cli.doctor import doctor_command
from workbench.cli.evaluate import catalog_app, evaluate_app
from workbench.cli.examples import example
from workbench.cli.export import export_command
from workbench.cli.failures import exit_code_of
from workbench.cli.listing import list_command
from workbench.cli.plan import plan_command

# The load generator shares the cores with the engine; spinning OpenMP threads would slow both by a factor of four.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

app = typer.Typer(
    name="workbench",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
scenario_app = typer.Typer(help="Check, show and describe scenario files.", no_args_is_help=True)
app.add_typer(scenario_app, name="scenario")
app.add_typer(evaluate_app, name="evaluate")
app.add_typer(catalog_app, name="catalog")

ScenarioPath = Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML).")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a value of the scenario; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for results.")]


_INTERRUPTED = 130
"""What Typer makes of Ctrl-C."""


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"workbench {version('llm-serving-workbench')}")
        raise typer.Exit


def print_json(value: Any) -> None:
    """One JSON object on stdout; refuses what is not finite."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False, default=str) + "\n")


@app.command(
    epilog=example(
        "workbench sweep scenarios/quickstart.yaml --trials 24",
        "workbench sweep --model Qwen/Qwen3-8B --gpu l40s --trace requests.csv --slo ttft_p95=2s",
    )
)
def sweep(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="[SCENARIO]", help="Scenario file (YAML); or --model, --gpu, --trace, --slo."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name in the catalogue, or a directory with a config.json.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Name in the catalogue, for example a100-80g-sxm.")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Recorded requests with arrival times.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second to replay it at. Default: as recorded.")
    ] = None,
    slo: Annotated[
        list[str] | None, typer.Option(metavar="A=B", help="ttft_p95=2s, tpot_p95=50ms; repeatable.")
    ] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="GPUs that share the model (tensor parallel).")] = None,
    quantization: Annotated[str | None, typer.Option(help="Weights: fp8, int8 or int4. Default: bfloat16.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache: fp8. Default: bfloat16.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Trials in all, the default included.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the search.")] = None,
    overrides: Set = None,
    out: Out = Path("reports"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest study of this scenario.")] = False,
    workers: Annotated[
        int, typer.Option(min=1, help="Trials at a time, each in a process; simulated targets only.")
    ] = 1,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start no trial after this long (30m); one that runs is finished."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where Optuna keeps the study: postgresql://, sqlite:///. Default: a file."),
    ] = None,
    artifacts: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder that all machines see, for the runs of trials. Default: the study's."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tune the engine's parameters for a scenario, or for a model, GPU and trace, and write a report."""
    from workbench.cli.sweep import sweep_command
    from workbench.services.sweep_question import SweepQuestion, load_question

    question = SweepQuestion(
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
    )
    sweep_command(
        load_question(question),
        trials=trials,
        seed=seed,
        parent=out,
        resume=resume,
        storage=storage,
        artifacts=artifacts,
        workers=workers,
        budget=budget,
        as_json=as_json,
    )


@app.command(epilog=example("workbench worker --study chat-1a2b3c4d --storage postgresql://db/studies --workers 4"))
def worker(
    study: Annotated[str, typer.Option(metavar="NAME", help="The study's name, as the sweep says it.")],
    storage: Annotated[str, typer.Option(metavar="URL", help="The database that the sweep was given.")],
    workers: Annotated[int, typer.Option(min=1, help="Trials at a time, each in a process.")] = 1,
    as_json: Json = False,
) -> None:
    """Work on a study that a sweep keeps in a database, from this machine or another."""
    from workbench.cli.worker import worker_command

    worker_command(study, storage=storage, workers=workers, as_json=as_json)


@app.command(epilog=example("workbench run scenarios/quickstart.yaml --set engine.max_num_seqs=32"))
def run(
    scenario: ScenarioPath,
    overrides: Set = None,
    out: Out = Path("reports/runs"),
    as_json: Json = False,
) -> None:
    """Run a scenario once with its own parameters and store what happened."""
    from workbench.cli.run import run_command

    run_command(scenario, overrides=overrides or [], parent=out, as_json=as_json)


@app.command(epilog=example("workbench analyze requests.csv --write chat.yaml"))
def analyze(
    path: Annotated[
        Path, typer.Argument(metavar="FILE|SCENARIO", help="File of requests (any known format), or a scenario.")
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="Counts the tokens of text: a directory, a hub id on this machine, smollm2-135m.")
    ] = None,
    overrides: Set = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder for plots (PNG).")] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="YAML", help="Write a scenario fitted to the file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Describe a file of requests or a scenario's workload before anything runs."""
    from workbench.cli.analyze import analyze_command

    analyze_command(path, tokenizer=tokenizer, overrides=overrides or [], directory=out, write=write, as_json=as_json)


@app.command(
    epilog=example(
        "workbench calibrate scenarios/quickstart.yaml --out profile.json",
        "workbench calibrate Qwen/Qwen3-8B --endpoint http://127.0.0.1:8000 --gpu l40s",
    )
)
def calibrate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Scenario file or model to time on this machine; folder of runs; folder of operator tables; with "
            "--endpoint the model that it serves.",
        ),
    ],
    path: Annotated[Path, typer.Option("--out", metavar="FILE.json", help="Where the profile goes.")] = Path(
        "profile.json"
    ),
    endpoint: Annotated[str | None, typer.Option(metavar="URL", help="Server to put chosen loads on.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Catalogue GPU that runs, endpoint or tables are of.")] = None,
    model: Annotated[str | None, typer.Option(help="Model of the runs. Default: their scenario's.")] = None,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="GPUs that the server runs on.")] = 1,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Measure how long steps take, so that simulations predict this machine or server."""
    from workbench.cli.calibrate import calibrate_command

    calibrate_command(
        source,
        overrides=overrides or [],
        path=path,
        endpoint=endpoint,
        gpu=gpu,
        model=model,
        tensor_parallel_size=tensor_parallel_size,
        as_json=as_json,
    )


@app.command(epilog=example("workbench report chat-1a2b3c4d", "workbench report runs/chat-1 --dialect vllm"))
def report(
    path: Annotated[
        Path, typer.Argument(metavar="STUDY|RUN", help="Folder of a study or a run, or its name under reports/.")
    ],
    dialect: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Print a run in a tool's terms: vllm, guidellm, aiperf, inference-perf."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the report of a study again, or print a run in another tool's definitions."""
    from workbench.cli.report import report_command

    report_command(path, dialect=dialect, as_json=as_json)


@app.command(epilog=example("workbench serve --model tiny --port 8000"))
def serve(
    model: Annotated[str, typer.Option(help="Built-in model, local directory, GGUF file or hub id.")] = "tiny",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 = any free one.")] = 8000,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="A=B", help="Engine parameter, e.g. block_size=8; repeatable.")
    ] = None,
    served_model_name: Annotated[str | None, typer.Option(help="Name that clients use. Default: the model's.")] = None,
) -> None:
    """Serve a model over HTTP with an OpenAI-compatible interface."""
    from workbench.services.serve import serve as run_server

    run_server(model=model, host=host, port=port, settings=overrides or [], served_model_name=served_model_name)


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Choose and verify an LLM server's parameters, before and after the GPU is there."""


@app.command(epilog=example("workbench init chat.yaml --model Qwen/Qwen3-8B --gpu l40s"))
def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where the scenario goes.")] = Path("scenario.yaml"),
    model: Annotated[str, typer.Option(help="Name in the catalogue, or a directory with a config.json.")] = (
        "Qwen/Qwen2.5-7B-Instruct"
    ),
    gpu: Annotated[str, typer.Option(help="Name in the catalogue, for example a100-80g-sxm.")] = "a100-80g-sxm",
    as_json: Json = False,
) -> None:
    """Write a commented scenario to start from; never over a file that exists."""
    from workbench.services.init import write_scenario

    write_scenario(path, model=model, gpu=gpu)
    if as_json:
        print_json({"written": str(path)})
    else:
        print(f"{path}: written. Next: workbench run {path}, or workbench sweep {path}")


app.command("budget", epilog=example("workbench budget --model Qwen/Qwen2.5-7B-Instruct --gpu a100-80g-sxm"))(
    budget_command
)
app.command("compare", epilog=example("workbench compare reports/runs/chat-1 reports/runs/chat-2"))(compare_command)
app.command("doctor", epilog=example("workbench doctor reports/runs/chat-1", "workbench doctor vllm.log"))(
    doctor_command
)
app.command("export", epilog=example("workbench export reports/chat-1a2b3c4d --format k8s --out chat.yaml"))(
    export_command
)
app.command("list", epilog=example("workbench list", "workbench list results --json"))(list_command)
app.command(
    "plan",
    epilog=example(
        "workbench plan --model Qwen/Qwen2.5-7B-Instruct --gpu a100-80g-sxm --trace requests.csv --rate 20 "
        "--slo ttft_p95=2s --slo tpot_p95=50ms"
    ),
)(plan_command)


@app.command(epilog=example("workbench dashboard", "workbench dashboard --store results --port 8600"))
def dashboard(
    store: Annotated[Path, typer.Option(help="Folder that holds the results.")] = Path("reports"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page.")] = 8501,
) -> None:
    """Open the Streamlit dashboard over the stored results."""
    from workbench.services.dashboard import run_dashboard

    run_dashboard(store, port)


@scenario_app.command("validate", epilog=example("workbench scenario validate scenarios/quickstart.yaml"))
def scenario_validate(scenario: ScenarioPath, overrides: Set = None, as_json: Json = False) -> None:
    """Check a scenario file, its engine configuration and its workload; nothing runs."""
    from workbench.services.describe import describe_scenario

    described = describe_scenario(scenario, overrides or [])
    for text in described["doubts"]:
        sys.stderr.write(f"warning: {text}\n")
    if as_json:
        print_json({"valid": True, "scenario": described["scenario"]["name"]})
    else:
        print(f"{scenario}: valid ({described['scenario']['name']})")


@scenario_app.command("show", epilog=example("workbench scenario show scenarios/quickstart.yaml"))
def scenario_show(scenario: ScenarioPath, overrides: Set = None, as_json: Json = False) -> None:
    """Show a scenario with all defaults, and the workload it generates."""
    from workbench.cli.show import render_scenario
    from workbench.services.describe import describe_scenario

    described = describe_scenario(scenario, overrides or [])
    if as_json:
        print_json(described)
    else:
        render_scenario(described)


@scenario_app.command("schema", epilog=example("workbench scenario schema > scenario.schema.json"))
def scenario_schema(as_json: Json = False) -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from workbench.scenario import json_schema

    print_json(json_schema())


def main() -> None:
    """Entry point: user errors exit with 2, failed and interrupted runs with 1, our own bugs with 3."""
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        code = _INTERRUPTED
    except Exception as error:
        code = exit_code_of(error)
    if code == _INTERRUPTED:
        sys.stderr.write("interrupted\n")
        code = 1
    sys.exit(code)

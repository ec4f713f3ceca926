"""`workbench budget`: flags and rendering."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

LENS_HELP = "Longest prompt + output in tokens; several as 4096,8192 or by repeating. Default: the model's own."


def budget_command(
    model: Annotated[str, typer.Option(help="Name in the catalogue, or a directory with a config.json.")],
    gpu: Annotated[str, typer.Option(help="Name in the catalogue, for example a100-80g-sxm.")],
    tp: Annotated[int, typer.Option(min=1, help="GPUs that share the model (tensor parallel).")] = 1,
    dtype: Annotated[
        str, typer.Option(help="Weights: bfloat16, float16, fp8, int8, int4 (awq, gptq). auto: as the name says.")
    ] = "auto",
    kv_dtype: Annotated[str, typer.Option(help="KV cache: auto (16 bits) or fp8.")] = "auto",
    max_model_len: Annotated[list[str] | None, typer.Option(metavar="N[,N...]", help=LENS_HELP)] = None,
    gpu_memory_utilization: Annotated[
        list[str] | None,
        typer.Option(metavar="U[,U...]", help="Share of GPU memory the engine may use; several as for lengths."),
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per KV block.")] = 16,
    kv_bytes: Annotated[
        str | None, typer.Option(help="Size of one GPU's KV cache, instead of what is left: 17179869184 or 16GiB.")
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option(metavar="FILE|SCENARIO", help="Requests whose mean and P95 length give two more concurrencies."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A=B", help="Further engine parameter, e.g. max_num_seqs=64; repeatable."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if it would not start.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    more_lens: Annotated[list[str] | None, typer.Argument(metavar="[N...]", hidden=True)] = None,
) -> None:
    """Say before a start what the memory of a model on a GPU holds, and what would make it fit."""
    from workbench.services.budget import Question, budget
    from workbench.services.serve import parse_settings

    found = budget(
        Question(
            model=model,
            gpu=gpu,
            tensor_parallel_size=tp,
            dtype=dtype,
            kv_dtype=kv_dtype,
            max_model_lens=_whole("--max-model-len", [*(max_model_len or []), *(more_lens or [])]),
            utilizations=_shares("--gpu-memory-utilization", gpu_memory_utilization or []),
            block_size=block_size,
            kv_bytes=kv_bytes,
            lengths=lengths,
            settings=parse_settings(overrides or []),
        )
    )
    if as_json:
        from workbench.cli.main import print_json

        print_json(found.to_json())
    else:
        _render(found)
    if check and found.refused is not None:
        raise typer.Exit(1)


def _words(values: list[str]) -> list[str]:
    return [word for value in values for word in value.replace(",", " ").split()]


def _whole(flag: str, values: list[str]) -> tuple[int, ...]:
    """`["4096,32k"]` -> `(4096, 32768)`; each length once, in the order given."""
    found: dict[int, None] = {}
    for word in _words(values):
        digits, scale = (word[:-1], 1024) if word[-1] in "kK" else (word, 1)
        if not digits.isascii() or not digits.isdigit() or int(digits) < 1:
            raise typer.BadParameter(f"{flag}: must be whole numbers of at least 1 like 4096 or 32k (got {word!r})")
        found[int(digits) * scale] = None
    return tuple(found)


def _shares(flag: str, values: list[str]) -> tuple[float, ...]:
    try:
        return tuple(dict.fromkeys(float(word) for word in _words(values)))
    except ValueError:
        raise typer.BadParameter(f"{flag}: must be numbers like 0.9 (got {' '.join(values)!r})") from None


def _render(found: Any) -> None:
    from workbench.cli.console import out

    plan, device, spec = found.shown, found.deployment.device, found.deployment.spec
    gpus = f"{plan.num_gpus} x {device.gpu.id}" if plan.num_gpus > 1 else device.gpu.id
    name = found.question.model
    name += "" if name in spec.name else f", geometry of {spec.name},"
    out.print(
        f"{name} ({device.precision.weights} weights, {device.precision.kv} KV) on {gpus}; "
        f"bytes are those of {'each' if plan.num_gpus > 1 else 'the'} GPU",
        markup=False,
    )
    out.print(_ledger(plan))
    geometry = plan.geometry
    out.print(
        f"KV cache: {geometry.bytes_per_token:,} bytes a token, {geometry.bytes_per_block:,} a block of "
        f"{geometry.block_size}; {plan.num_blocks:,} blocks = {plan.kv_tokens:,} tokens",
        markup=False,
    )
    _render_concurrency(found)
    _render_windowed(found)
    out.print(_table(found))
    for warning in found.warnings:
        out.print(f"warning: {warning}", markup=False)
    _render_verdict(found)


def _ledger(plan: Any) -> Table:
    table = Table(
        title=f"max_model_len {plan.max_model_len:,} at gpu_memory_utilization {plan.gpu_memory_utilization:g}"
    )
    table.add_column("memory")
    table.add_column("GiB", justify="right")
    names = {
        "weights": "weights",
        "kv": "KV cache",
        "activation": "peak activation",
        "logits": "logits beyond it",
        "graphs": "CUDA graphs",
        "context": "context, buffers",
        "free": "left over",
    }
    ledger = plan.ledger
    for key, name in names.items():
        table.add_row(name, f"{ledger[key] / 1024**3:.2f}")
    table.add_section()
    table.add_row(f"budget, of {plan.device_bytes / 1024**3:.2f}", f"{plan.budget_bytes / 1024**3:.2f}")
    return table


def _render_concurrency(found: Any) -> None:
    from workbench.cli.console import out

    plan, lengths = found.shown, found.lengths
    at = found.concurrency(plan)
    out.print(
        f"concurrency: {at['at_max_model_len']:.2f} requests of max_model_len {plan.max_model_len:,} at once",
        markup=False,
    )
    if lengths is None:
        out.print("  (give --lengths FILE|SCENARIO for the concurrency at the mean and the P95 length)", markup=False)
        return
    out.print(
        f"  {at['at_mean']:.2f} of the mean {lengths.mean:,.0f} tokens, {at['at_p95']:.2f} of the P95 "
        f"{lengths.p95:,.0f} tokens ({lengths.num_requests:,} requests of {lengths.source})",
        markup=False,
    )
    out.print(f"  {lengths.source}: {lengths.requests.describe()}", markup=False)


def _render_windowed(found: Any) -> None:
    from workbench.cli.console import out

    windowed = found.windowed
    if windowed is not None:
        out.print(
            f"  vLLM's hybrid cache manager keeps {windowed.window:,} tokens in {windowed.num_windowed_layers} of the "
            f"layers: {windowed.kv_tokens:,} tokens, {windowed.concurrency:.2f} such requests at once",
            markup=False,
        )


def _table(found: Any) -> Table:
    """Rows: lengths; columns: utilisations; cells: full-length requests at once."""
    lens = list(dict.fromkeys(plan.max_model_len for plan in found.table))
    shares = list(dict.fromkeys(plan.gpu_memory_utilization for plan in found.table))
    cells = {(plan.max_model_len, plan.gpu_memory_utilization): plan for plan in found.table}
    is_direct = found.shown.is_sized_directly
    table = Table(title="full-length requests at once (– = does not start)")
    table.add_column("max_model_len")
    for share in shares:
        table.add_column("as sized" if is_direct else f"at {share:g}", justify="right")
    for length in lens:
        row = [cells[length, share] for share in shares]
        table.add_row(f"{length:,}", *(f"{plan.concurrency(length):.2f}" if plan.starts else "–" for plan in row))
    return table


def _render_verdict(found: Any) -> None:
    from workbench.cli.console import out

    if found.refused is None:
        out.print("starts", markup=False)
        return
    plan = found.refused
    out.print(
        f"DOES NOT START with max_model_len {plan.max_model_len:,} at gpu_memory_utilization "
        f"{plan.gpu_memory_utilization:g}: {plan.problem}",
        markup=False,
    )
    for remedy in found.remedies:
        fits = remedy.plan
        out.print(
            f"  would start with {remedy.change}: {fits.kv_tokens:,} KV tokens, "
            f"{fits.concurrency(fits.max_model_len):.2f} requests of {fits.max_model_len:,}",
            markup=False,
        )
    if not found.remedies:
        out.print("  no usual change makes it start: the model is too large for any number of these GPUs", markup=False)

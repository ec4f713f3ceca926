"""`workbench calibrate` in the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from engine.executor.cost_model.calibration_profile import CalibrationProfile
from workbench.cli.console import err, out
from workbench.services.calibrate import (
    calibrate_from_runs,
    calibrate_from_tables,
    calibrate_machine_for,
    kind_of,
    save_calibration,
)
from workbench.workload.account import ImportAccount


def calibrate_command(
    source: str,
    *,
    overrides: list[str],
    path: Path,
    endpoint: str | None,
    gpu: str | None,
    model: str | None,
    tensor_parallel_size: int,
    as_json: bool,
) -> None:
    with err.status("reading") as status:
        kind = kind_of(source) if endpoint is None else "adjusted"
        if kind == "machine":
            profile = calibrate_machine_for(source, overrides, path.stem, status.update)
        elif kind == "operators":
            profile = calibrate_from_tables(Path(source), gpu, path.stem)
        else:
            profile = calibrate_from_runs(
                source,
                url=endpoint,
                gpu=gpu,
                model=model,
                tensor_parallel_size=tensor_parallel_size,
                name=path.stem,
                report=status.update,
            )
    save_calibration(profile, path)
    if as_json:
        from workbench.cli.main import print_json

        print_json(profile.to_dict() | {"profile": str(path)})
        return
    render(profile)
    out.print(f"stored: {path}", markup=False)
    out.print(f"use it: target: {{kind: simulated, profile: {path}}}", markup=False)


def render(profile: CalibrationProfile) -> None:
    """Error by regime, and the range it holds for."""
    table = Table(title=f"{profile.name}: {profile.kind}", title_justify="left", box=None)
    for title in ("error on held-out steps", "median", "P90", "total", "steps"):
        table.add_column(title, justify="left" if title.startswith("error") else "right")
    for name, error in profile.errors.items():
        label = "one repeat from the next" if name == "repeat" else name
        total = f"{error['total']:+.1%}" if "total" in error else "–"
        steps = f"{error['num_steps']:,.0f}" if "num_steps" in error else "–"
        table.add_row(label, f"{error['median']:.1%}", f"{error['p90']:.1%}", total, steps)
    out.print(table)
    if "requests" in profile.provenance:
        out.print(f"requests: {ImportAccount(**profile.provenance['requests']).describe()}", markup=False)
    change = profile.adjustment
    if change is not None:
        out.print(
            f"prefill x {change.prefill_factor:.2f}, decode x {change.decode_factor:.2f}, "
            f"{change.step_s * 1e3:.2f} ms a step, {(profile.request_s or 0.0) * 1e3:.1f} ms a request in the server, "
            f"{profile.delay_s * 1e3:.1f} ms a request beside it (gateway, network)",
            markup=False,
        )
    limits = profile.validity
    parts = (
        (limits.max_num_seqs, "sequences"),
        (limits.max_step_tokens, "tokens a step"),
        (limits.max_kv_tokens, "tokens of KV cache"),
    )
    shown = ", ".join(f"{value:,} {what}" for value, what in parts if value is not None)
    out.print(f"valid up to {shown}" if shown else "valid for any batch", markup=False)

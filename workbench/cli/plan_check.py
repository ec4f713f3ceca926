"""`workbench plan --check`: rendering."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from workbench.cli.console import metric, out, run_status
from workbench.plan.check import CheckedFigure, CheckQuestion, PlanCheck, check_plan


def check_command(
    plan: Path | None,
    endpoint: str | None,
    planned: Mapping[str, Any],
    *,
    model: str | None,
    api_key_env: str | None,
    replicas: int | None,
    overrides: list[str],
    as_json: bool,
) -> None:
    """`planned`: flags that the plan has answered, as given."""
    if plan is None or endpoint is None:
        raise typer.BadParameter("--check and --endpoint go together: the plan, and the address of what it became")
    for name, value in planned.items():
        if value:
            raise typer.BadParameter(f"{name}: the plan says it. Use --set to change its scenario")
    question = CheckQuestion(
        plan=plan,
        url=endpoint,
        model=model,
        api_key_env=api_key_env,
        replicas=replicas,
        overrides=tuple(overrides),
    )
    with run_status("asking the endpoint") as report:
        found = check_plan(question, report)
    if as_json:
        from workbench.cli.main import print_json

        print_json(found.to_dict())
    else:
        _render(found)
    if not found.holds:
        raise SystemExit(1)


def _render(found: PlanCheck) -> None:
    replicas = f"{found.replicas} replica{'s' if found.replicas > 1 else ''}"
    out.print(f"{replicas} at {found.rate_per_s:g} requests/s", markup=False)
    out.print(f"  {'':6} {'':20} {'planned':>10} {'measured':>10}", markup=False)
    for figure in found.figures:
        out.print(_line(figure), markup=False)
    for reason in found.reasons:
        out.print(f"{found.verdict}: {reason}", markup=False)
    out.print("The plan holds." if found.holds else "The plan does not hold.", markup=False)


def _line(figure: CheckedFigure) -> str:
    word = {True: "holds", False: "FAILS", None: "–"}[figure.holds]
    planned, measured = _value(figure.name, figure.predicted), _value(figure.name, figure.measured)
    return f"  {word:6} {figure.name:20} {planned:>10} {measured:>10}   {figure.rule}"


def _value(name: str, value: float | None) -> str:
    return f"{value:,.0f}" if name == "num_blocks" and value is not None else metric(name, value)

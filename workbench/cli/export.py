"""`workbench export` in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def export_command(
    source: Annotated[Path, typer.Argument(metavar="STUDY|RUN|PLAN", help="Folder of a study or run, or a plan file.")],
    format_name: Annotated[
        str, typer.Option("--format", help="vllm-args, vllm-yaml, compose, k8s or env.")
    ] = "vllm-args",
    vllm_version: Annotated[
        str | None, typer.Option(help="Version whose options are checked. Default: the newest stored.")
    ] = None,
    trial: Annotated[int | None, typer.Option(min=0, help="Trial of the study to export. Default: its winner.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="Further option of vLLM; repeatable.")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Which pool's server, for formats that start one.")] = None,
    namespace: Annotated[str, typer.Option(help="Namespace of the Kubernetes manifests.")] = "default",
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write there instead of to stdout.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Write what starts a study's winner, a run or a plan: script, vLLM or Compose file, Kubernetes, environment."""
    from workbench.services.export import export
    from workbench.services.serve import parse_settings

    try:
        options = parse_settings(option or [])
    except ValueError as error:
        raise typer.BadParameter(str(error).replace("--set", "--option")) from None
    exported = export(
        source,
        format_name,
        trial=trial,
        vllm_version=vllm_version,
        options=options,
        pool=pool,
        namespace=namespace,
    )
    if out is not None:
        out.write_text(exported.text, encoding="utf-8")
        if format_name == "vllm-args":
            out.chmod(0o755)
    if as_json:
        from workbench.cli.main import print_json

        print_json(exported.to_json() | {"written": None if out is None else str(out)})
    elif out is None:
        sys.stdout.write(exported.text)
    else:
        sys.stdout.write(f"{out}\n")
    for warning in exported.warnings:
        sys.stderr.write(f"warning: {warning}\n")

"""The command line of `vllm serve`, and comments."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from workbench.report.export.facts import DeploymentFacts, OptionValue, PoolFacts


def arguments(pool: PoolFacts) -> list[str]:
    """`["--max-num-seqs", "64", "--enable-prefix-caching"]`; a false flag becomes `--no-...`."""
    words: list[str] = []
    for name, value in pool.options:
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", plain(value)]
    return words


def plain(value: OptionValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def quoted(words: Iterable[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


def comments(lines: Iterable[str]) -> str:
    """Every line behind `# `, whatever line breaks it has."""
    flat = [part for line in lines for part in (line.splitlines() or [""])]
    return "".join(f"# {line}".rstrip() + "\n" for line in flat)


def scaling_rule(facts: DeploymentFacts) -> str:
    """The autoscaling rule in words, for formats that cannot state it."""
    limits = ", ".join(f"{pool.name} {pool.replicas} to {pool.max_replicas}" for pool in facts.pools)
    return (
        f"Autoscaling: add a replica while vllm:num_requests_waiting is over {facts.scale_at_waiting} per replica for "
        f"10 s ({limits} replicas). It is the queue, not the GPU's load, that says an instance is full."
    )

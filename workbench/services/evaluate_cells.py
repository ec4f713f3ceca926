"""The cells of a published row: what they state, and what no run can have had."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

Row = Mapping[str, str]
MOST_STATED_PROMPTS = 200_000
_GREATEST = 2**31
_SLOWEST, _FASTEST = 1e-6, 1e9
"""Requests per second of a stated rate."""
_COUNTS = ("tp", "pp", "num_prompts", "max_concurrency", "input_len", "output_len")
UNSTATED = ("", "nan", "none", "null", "inf", "infinity")
"""What tables write where a column does not apply or there is no limit."""


class NotBuildable(Exception):
    """A row that cannot be simulated; the message says why."""


def check_stated(row: Row) -> None:
    """Raise `NotBuildable` for a stated count or length that no run can have had; it would be taken for another."""
    for name in _COUNTS:
        text = (row.get(name) or "").strip()
        if text.lower() in UNSTATED:
            continue
        value = number(row, name)
        if value is None or not 1 <= value <= _GREATEST:
            raise NotBuildable(f"{name}: must be a number from 1 to {_GREATEST} (got {text!r})")
    if (number(row, "num_prompts") or 0) > MOST_STATED_PROMPTS:
        raise NotBuildable(f"num_prompts: must be at most {MOST_STATED_PROMPTS} (got {row['num_prompts']})")


def number(row: Row, name: str) -> float | None:
    """A column's value; None where it is empty or no number."""
    try:
        value = float(row.get(name) or "")
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def stated_rate(text: str) -> float:
    """Requests per second. Raises `NotBuildable`."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not _SLOWEST <= rate <= _FASTEST:
        raise NotBuildable(f"request_rate: must be a rate from {_SLOWEST:g} to {_FASTEST:g} per s (got {text!r})")
    return rate


def version_of(row: Row) -> tuple[int, int]:
    """(major, minor); unknown versions count as current."""
    text = row.get("engine_version", "") or ""
    match = re.search(r"v?(\d+)\.(\d+)", text)
    if match is None:
        return (0, 6) if text.startswith("2024") else (0, 11)
    return (int(match[1]), int(match[2])) if int(match[1]) < 100 else (0, 11)

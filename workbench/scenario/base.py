"""What all parts of the schema share: strictness, units, and problems that name their key."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

_SECONDS = {
    "": 1.0,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}


class Spec(BaseModel):
    """A frozen piece of a scenario; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def problem(key: str, rule: str) -> PydanticCustomError:
    """A broken rule that spans several keys, to be raised in a validator; the report places it at `key`.

    `key` may be empty (the mapping itself) or dotted (deeper).
    """
    return PydanticCustomError("rule", "{rule}", {"key": key, "rule": rule})


def parse_duration(value: Any) -> Any:
    """Seconds from 2, 0.5, "500ms", "2s", "1.5 min"; what is no duration passes for pydantic to refuse."""
    if isinstance(value, bool):
        raise problem("", "must be a duration such as 500ms, 2s or 0.5 (seconds)")
    if isinstance(value, (int, float)):
        return float(value)
    match = (
        re.fullmatch(r"\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([a-z]*)\s*", value)
        if isinstance(value, str)
        else None
    )
    if match is None or match[2] not in _SECONDS:
        raise problem("", "must be a duration such as 500ms, 2s or 0.5 (seconds)")
    return float(match[1]) * _SECONDS[match[2]]


def _whole(value: Any) -> Any:
    """1e3 is a whole number too; true and "7" are not."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value


def _not_vanishing(value: float) -> float:
    """1 / 1e-300 is still a number, but no gap between two requests."""
    if value < _LEAST:
        raise problem("", f"must be at least {_LEAST:g} (got {value:g})")
    return value


_INT64 = 2**63 - 1
_LEAST = 1e-9
_MOST = 10**9
_LONGEST_S = 1e9
"""Some thirty years: what is longer is a slip of the pen, and clocks cannot sleep that long."""

Count = Annotated[int, BeforeValidator(_whole), Field(strict=True, ge=1, le=_MOST)]
"""A whole number, at least 1."""
WholeNumber = Annotated[int, BeforeValidator(_whole), Field(strict=True, ge=0, le=_INT64)]
"""A whole number, at least 0."""
Integer = Annotated[int, BeforeValidator(_whole), Field(strict=True, ge=-_INT64, le=_INT64)]
Positive = Annotated[float, Field(strict=True, gt=0, le=1e12), AfterValidator(_not_vanishing)]
NonNegative = Annotated[float, Field(strict=True, ge=0)]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
"""A fraction, over 0 and at most 1."""
Duration = Annotated[
    float, BeforeValidator(parse_duration, json_schema_input_type=float | str), Field(gt=0, le=_LONGEST_S)
]
"""Seconds, over 0."""
DurationOrZero = Annotated[
    float, BeforeValidator(parse_duration, json_schema_input_type=float | str), Field(ge=0, le=_LONGEST_S)
]
"""Seconds, at least 0."""

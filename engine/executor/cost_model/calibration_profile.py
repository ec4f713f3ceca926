"""Calibration profiles: what `workbench calibrate` found out, as one small JSON file.

Three kinds: `machine` (timed steps of the embedded engine here), `adjusted` (factors around the catalogue's prediction,
from runs or an endpoint) and `operators` (operator tables of a GPU). Each says where it comes from, how far it was off
on what it had not seen, and within which limits that holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from engine.errors import ConfigError
from engine.executor.cost_model.calibrated import Adjustment
from engine.executor.cost_model.machine import CORNERS, TERMS, MachineCost
from engine.executor.cost_model.operators import OperatorProfile, profile_from_dict, profile_to_dict

FORMAT = "calibration-1"
Kind = Literal["machine", "adjusted", "operators"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """The largest that was measured; None = not limited by the measurement."""

    max_num_seqs: int | None = None
    """Sequences in a step."""
    max_step_tokens: int | None = None
    """Tokens in a step."""
    max_kv_tokens: int | None = None
    """Token positions in the KV cache, all sequences together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationProfile:
    """See the module."""

    kind: Kind
    name: str
    """Of the file, without its ending: what predictions call it."""
    model: str | None = None
    """The model that was timed; None = any."""
    gpu: str | None = None
    """Catalogue id; None = this machine."""
    tensor_parallel_size: int | None = None
    machine: MachineCost | None = None
    wake_s: float = 0.0
    """What the first step after a pause takes longer."""
    device: Mapping[str, Any] = field(default_factory=dict)
    """`machine`: the device as the engine saw it (`engine.resolve.DeviceFacts`)."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Engine parameters that the times depend on, and their values."""
    adjustment: Adjustment | None = None
    request_s: float | None = None
    """`adjusted`: time per request in the server's front end; None = the catalogue's."""
    delay_s: float = 0.0
    """`adjusted`: constant per request that takes up nothing: a gateway, TLS, the network."""
    operators: OperatorProfile | None = None
    errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Regime -> median, p90 (absolute, relative to the measurement) and what else the calibration reports."""
    validity: Validity = field(default_factory=Validity)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """When, where and from what."""

    @property
    def error_band(self) -> str:
        """One line for people."""
        if not self.errors:
            return "error unknown"
        bands = (f"{name} {error['median']:.1%} / {error['p90']:.1%}" for name, error in self.errors.items())
        return f"median / P90 error when calibrated: {', '.join(bands)}"

    def facts(self) -> dict[str, Any]:
        """What is stored with every run that was predicted with it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "model": self.model,
            "gpu": self.gpu,
            "error": {name: dict(error) for name, error in self.errors.items()},
            "error_band": self.error_band,
            "validity": asdict(self.validity),
            "created_at": self.provenance.get("created_at"),
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        values: dict[str, Any] = {
            "format": FORMAT,
            "kind": self.kind,
            "model": self.model,
            "gpu": self.gpu,
            "tensor_parallel_size": self.tensor_parallel_size,
            "errors": {name: dict(error) for name, error in self.errors.items()},
            "validity": asdict(self.validity),
            "engine": dict(self.engine),
            "provenance": dict(self.provenance),
        }
        if self.machine is not None:
            values["machine"] = {
                "token_corners": list(CORNERS),
                "token_slopes_us": [_digits(slope * 1e6) for slope in self.machine.slopes_s],
                "terms_us": {name: _digits(self.machine.terms_s.get(name, 0.0) * 1e6) for name in TERMS},
                "wake_us": _digits(self.wake_s * 1e6),
                "device": dict(self.device),
            }
        if self.adjustment is not None:
            values["adjustment"] = {
                **asdict(self.adjustment), "request_s": self.request_s, "delay_s": self.delay_s
            }  # fmt: skip
        if self.operators is not None:
            values["operators"] = profile_to_dict(self.operators)
        return values


def load_calibration(path: Path) -> CalibrationProfile:
    """The profile in a file. Raises `ConfigError`, which names file and fault."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"profile: {path}: no such file. Write one with `workbench calibrate --out {path}`") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"profile: {path}: cannot be read ({str(error).splitlines()[0][:120]})") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, dict) else type(values).__name__
        raise ConfigError(f"profile: {path}: format {found!r}, not {FORMAT!r}. Calibrate again with this version")
    try:
        return _profile(path.stem, values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"profile: {path}: is not a calibration profile ({error!r}). Calibrate again") from None


def _profile(name: str, values: Mapping[str, Any]) -> CalibrationProfile:
    kind = values["kind"]
    if kind not in get_args(Kind):
        raise ValueError(f"kind {kind!r}")
    machine, adjustment, operators = (values.get(part) for part in ("machine", "adjustment", "operators"))
    if values.get({"machine": "machine", "adjusted": "adjustment", "operators": "operators"}[kind]) is None:
        raise ValueError(f"no values for kind {kind!r}")
    return CalibrationProfile(
        kind=kind,
        name=name,
        model=_text(values["model"]),
        gpu=_text(values["gpu"]),
        tensor_parallel_size=values.get("tensor_parallel_size"),
        machine=None if machine is None else _machine(machine),
        wake_s=0.0 if machine is None else _amount(machine["wake_us"]) * 1e-6,
        device={} if machine is None else dict(machine["device"]),
        engine=dict(values.get("engine", {})),
        adjustment=None if adjustment is None else _adjustment(adjustment),
        request_s=_request_s(adjustment),
        delay_s=0.0 if adjustment is None else _amount(adjustment.get("delay_s", 0.0)),
        operators=None if operators is None else profile_from_dict(operators),
        errors={key: {each: float(v) for each, v in error.items()} for key, error in values.get("errors", {}).items()},
        validity=Validity(**values.get("validity", {})),
        provenance=dict(values.get("provenance", {})),
    )


def _machine(values: Mapping[str, Any]) -> MachineCost:
    if list(values["token_corners"]) != list(CORNERS):
        raise ValueError("token_corners are those of another version")
    slopes = tuple(_amount(slope) * 1e-6 for slope in values["token_slopes_us"])
    if len(slopes) != len(CORNERS) - 1:
        raise ValueError("one slope is needed between every two corners")
    return MachineCost(slopes, {name: _amount(values["terms_us"][name]) * 1e-6 for name in TERMS})


def _adjustment(values: Mapping[str, Any]) -> Adjustment:
    names = ("prefill_factor", "decode_factor", "step_s")
    return Adjustment(**{name: _amount(values[name]) for name in names})


def _request_s(adjustment: Mapping[str, Any] | None) -> float | None:
    value = None if adjustment is None else adjustment.get("request_s")
    return None if value is None else _amount(value)


def _amount(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number >= 0.0):
        raise ValueError(f"{value!r} is not a time or factor >= 0")
    return number


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r} is not a name")
    return value


def _digits(value: float) -> float:
    return float(f"{value:.6g}")

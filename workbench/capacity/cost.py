"""What a fleet costs per hour and per token, and the energy that its data sheet allows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.catalog import GpuSpec, find_gpu
from engine.errors import ConfigError
from workbench.records.figures import four_digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for one GPU and hour."""

    per_hour: float
    source: str


def parse_prices(texts: list[str]) -> dict[str, float]:
    """`["a100-80g-sxm=1.9"]` -> GPU id -> price. Raises `ConfigError`."""
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            price = float(value)
        except ValueError:
            price = -1.0
        if not 0.0 <= price < 1e6:
            raise ConfigError(f"--price: must be GPU=DOLLARS per hour, for example a100-80g-sxm=1.9 (got {text!r})")
        found[find_gpu(name).id] = price
    return found


def price_of(gpu: GpuSpec, prices: Mapping[str, float]) -> Price | None:
    """The user's price, else the catalogue's example; None where there is neither."""
    if gpu.id in prices:
        return Price(per_hour=prices[gpu.id], source="given with --price")
    if gpu.price_per_hour is None:
        return None
    return Price(per_hour=gpu.price_per_hour, source=f"catalogue: {gpu.price_source}")


def cost_of(gpu: GpuSpec, num_gpus: int, tokens_per_s: float, prices: Mapping[str, float]) -> dict[str, Any]:
    """`num_gpus` GPUs that serve `tokens_per_s` (prompt + output)."""
    price, million_per_hour = price_of(gpu, prices), tokens_per_s * 3600.0 / 1e6
    per_hour = None if price is None else price.per_hour * num_gpus
    watts = None if gpu.tdp_w is None else gpu.tdp_w * num_gpus
    return {
        "num_gpus": num_gpus,
        "usd_per_gpu_hour": None if price is None else price.per_hour,
        "usd_per_hour": four_digits(per_hour),
        "usd_per_million_tokens": None if per_hour is None else four_digits(per_hour / million_per_hour),
        "kwh_per_hour_at_most": None if watts is None else four_digits(watts / 1000.0),
        "kwh_per_million_tokens_at_most": None if watts is None else four_digits(watts / 1000.0 / million_per_hour),
        "source": "no price in the catalogue: give --price" if price is None else price.source,
        "energy_source": "GPUs at their rated power (data sheet), host and cooling left out",
    }


def rent_of(gpu: GpuSpec, gpu_seconds: float, prices: Mapping[str, float]) -> dict[str, Any]:
    """What so much time of GPUs costs; `usd` is None without a price."""
    price, hours = price_of(gpu, prices), gpu_seconds / 3600.0
    source = "no price in the catalogue" if price is None else f"${price.per_hour:g} per GPU and hour, {price.source}"
    return {
        "gpu_hours": four_digits(hours),
        "usd": None if price is None else four_digits(price.per_hour * hours),
        "source": source,
    }

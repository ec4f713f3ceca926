"""GPUs and model geometries as data: names, aliases and sources live in the CSV files beside this module."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path

from engine.catalog.gpu_names import nearest, rank_of, words_of
from engine.catalog.model_names import same_checkpoint, same_geometry, split_name
from engine.errors import ConfigError
from engine.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU as its data sheet describes it. Absent rates are None: the chip has no such units."""

    id: str
    """Lower case, `name-memory[-form]`: `a100-80g-sxm`."""
    name: str
    """As in the data file."""
    vendor: str
    arch: str
    num_sms: int
    """Streaming multiprocessors or compute units."""
    memory_bytes: int
    """Nominal, GiB-based as drivers report it."""
    bandwidth: float
    """Memory bandwidth, bytes per second."""
    bf16_flops: float
    fp8_flops: float | None
    int8_ops: float | None
    link_bandwidth: float | None
    """Between GPUs, one direction, bytes per second."""
    link_type: str
    l2_bytes: float
    tdp_w: float | None
    price_per_hour: float | None
    """US dollars; an example with a date, not a quote."""
    price_source: str
    spec_source: str


def list_gpus() -> tuple[GpuSpec, ...]:
    """All GPUs of the catalogue, in file order."""
    return tuple(_gpus().values())


def find_gpu(name: str) -> GpuSpec:
    """Return the GPU meant by any usual spelling; without a form factor the SXM part is meant.

    Raises `ConfigError` with the nearest known ids for a card that is not in the catalogue.
    """
    wanted = words_of(name)
    ranked = [
        (rank, gpu)
        for gpu in _gpus().values()
        if (rank := rank_of(wanted, gpu.id, gpu.arch, gpu.memory_bytes)) is not None
    ]
    if not ranked:
        raise ConfigError(f"gpu: {name!r} is not in the catalogue. {nearest(name.lower(), _gpus())}")
    return min(ranked, key=lambda pair: pair[0])[1]


def gpu_id(name: str) -> str:
    """Return the catalogue's id of a GPU, which its aliases share; the name itself where it is not in the catalogue."""
    try:
        return find_gpu(name).id
    except ConfigError:
        return name


def list_models() -> tuple[ModelSpec, ...]:
    """All models of the catalogue, in file order."""
    return tuple(_models().values())


def find_catalog_model(name: str) -> ModelSpec | None:
    """Return geometry and window of a checkpoint by name, with or without its owner and a quantised ending.

    A checkpoint that is known by its geometry alone (another role or release of a known model) comes without a window:
    see `ModelSpec.window`.
    """
    checkpoint, _ = split_name(name)
    found = _checkpoints().get(same_checkpoint(checkpoint))
    if found is not None:
        return found.spec
    geometry = _geometries().get(same_geometry(checkpoint))
    return None if geometry is None else replace(geometry.spec, unknown_window_of=name)


def published_name(model: str) -> str:
    """Return a model's name with the organisation that publishes it: `Qwen2.5-7B` -> `Qwen/Qwen2.5-7B`, `-AWQ` kept.

    The name itself where it has an organisation, is a directory, or is not in the catalogue.
    """
    if "/" in model or Path(model).is_dir():
        return model
    checkpoint, _ = split_name(model)
    found = _checkpoints().get(same_checkpoint(checkpoint)) or _geometries().get(same_geometry(checkpoint))
    if found is None:
        return model
    owner, _, bare = found.name.rpartition("/")
    return found.name if bare.lower() == model.lower() else f"{owner or found.spec.name.partition('/')[0]}/{model}"


@cache
def attention_weights(model: str, weights: str) -> str:
    """Weight type of the attention projections in the published checkpoint of a model in `weights`: mostly the same."""
    rows = _rows("checkpoints.csv")
    return next((row["attention"] for row in rows if row["model"] == model and row["weights"] == weights), weights)


@cache
def _gpus() -> Mapping[str, GpuSpec]:
    found = {}
    for row in _rows("gpus.csv"):
        spec = _gpu(row)
        found[spec.id] = spec
    return found


def _gpu(row: Mapping[str, str]) -> GpuSpec:
    def number(name: str, scale: float = 1.0) -> float | None:
        return float(row[name]) * scale if row[name] else None

    memory = float(row["mem_gb"])
    return GpuSpec(
        id=_gpu_id(row["gpu"]),
        name=row["gpu"],
        vendor=row["vendor"],
        arch=row["arch"],
        num_sms=int(row["sm_or_cu"]),
        memory_bytes=int(memory * 1024**3),
        bandwidth=float(row["mem_bw_gbps"]) * 1e9,
        bf16_flops=float(row["bf16_dense_tflops"]) * 1e12,
        fp8_flops=number("fp8_dense_tflops", 1e12),
        int8_ops=number("int8_dense_tops", 1e12),
        link_bandwidth=number("link_per_dir_gbps", 1e9),
        link_type=row["link_type"],
        l2_bytes=float(row["l2_mb"] or 0) * 1e6,
        tdp_w=number("tdp_w"),
        price_per_hour=number("price_usd_hr"),
        price_source=" ".join(filter(None, (row["price_kind"], row["price_date"], row["price_source"]))),
        spec_source=row["spec_source"],
    )


def _gpu_id(name: str) -> str:
    """`A100-SXM-80GB` -> `a100-80g-sxm`."""
    words = name.lower().split("-")
    memory = next(word for word in words if re.fullmatch(r"\d+gb", word))
    forms = [word for word in words if word in ("sxm", "pcie", "nvl")]
    rest = [word for word in words if word != memory and word not in forms]
    return "-".join([*rest, memory.removesuffix("b"), *forms])


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    name: str
    """As published."""
    spec: ModelSpec


@cache
def _models() -> Mapping[str, ModelSpec]:
    return {row["model"]: _model(row) for row in _rows("models.csv")}


@cache
def _checkpoints() -> Mapping[str, _Checkpoint]:
    """Key of a checkpoint -> the checkpoint with its own window."""
    found = {same_checkpoint(split_name(name)[0]): _Checkpoint(name, spec) for name, spec in _models().items()}
    for row in _rows("aliases.csv"):
        name, spec = row["checkpoint"], _models()[row["geometry"]]
        known = row["max_position"]
        spec = replace(spec, max_position=int(known)) if known else replace(spec, unknown_window_of=name)
        found[same_checkpoint(split_name(name)[0])] = _Checkpoint(name, spec)
    return found


@cache
def _geometries() -> Mapping[str, _Checkpoint]:
    """Key of a geometry -> a checkpoint that has it, the catalogue's own first."""
    found: dict[str, _Checkpoint] = {}
    for each in (*(_Checkpoint(name, spec) for name, spec in _models().items()), *_checkpoints().values()):
        found.setdefault(same_geometry(split_name(each.name)[0]), each)
    return found


def _model(row: Mapping[str, str]) -> ModelSpec:
    def whole(name: str) -> int | None:
        return int(row[name]) if row[name] else None

    return ModelSpec(
        name=row["model"],
        family=row["family"],
        num_layers=int(row["layers"]),
        hidden_size=int(row["hidden"]),
        intermediate_size=int(row["ffn"]),
        num_heads=int(row["heads"]),
        num_kv_heads=int(row["kv_heads"]),
        head_dim=int(row["head_dim"]),
        vocab_size=int(row["vocab"]),
        max_position=int(row["max_position"]),
        tie_word_embeddings=row["tied_embeddings"] == "true",
        qkv_bias=row["attention_bias"] == "true",
        qk_norm=row["family"].startswith("qwen3"),
        sliding_window=whole("sliding_window"),
        num_experts=whole("experts"),
        num_experts_per_token=whole("experts_per_token"),
        expert_intermediate_size=whole("expert_ffn"),
    )


def _rows(file: str) -> Iterator[dict[str, str]]:
    text = (resources.files(__name__) / file).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())

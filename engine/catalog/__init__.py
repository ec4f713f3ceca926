"""GPUs and model geometries as data: names, aliases and sources live in the CSV files beside this module."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from engine.errors import ConfigError, suggest
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
    """The GPU meant by any usual spelling; without a form factor the SXM part is meant.

    Raises `ConfigError` with the nearest known id.
    """
    wanted = _tokens(name)
    best: tuple[tuple[int, bool, int], GpuSpec] | None = None
    for gpu in _gpus().values():
        have = _tokens(gpu.id)
        if wanted and wanted <= have:
            # Fewest words that were not asked for (the form aside), SXM before other forms, most memory first.
            rank = (len(have - wanted - {"sxm"}), "sxm" not in have, -gpu.memory_bytes)
            if best is None or rank < best[0]:
                best = (rank, gpu)
    if best is None:
        raise ConfigError(f"gpu: {name!r} is not in the catalogue. {suggest(name.lower(), _gpus())}")
    return best[1]


def list_models() -> tuple[ModelSpec, ...]:
    """All models of the catalogue, in file order."""
    return tuple(spec for spec, _ in _models())


def find_catalog_model(name: str) -> ModelSpec | None:
    """The geometry of a model by name, with or without its organisation, under its aliases and quantised names."""
    known = _model_names()
    for key in _model_keys(name):
        if key in known:
            return known[key]
    return None


def published_name(model: str) -> str:
    """With the organisation it is published by: `Qwen2.5-7B` -> `Qwen/Qwen2.5-7B`, and `-AWQ` keeps its ending. The
    name itself where it has an organisation, or is not in the catalogue."""
    spec = None if "/" in model else find_catalog_model(model)
    if spec is None:
        return model
    aliases = next(aliases for each, aliases in _models() if each is spec)
    owner = spec.name.partition("/")[0]
    names = [spec.name, *(name if "/" in name else f"{owner}/{name}" for name in aliases)]
    for key in _model_keys(model):
        for name in names:
            if key in _model_keys(name):
                bare = name.rpartition("/")[2]
                return name if bare.lower() == model.lower() else f"{name.partition('/')[0]}/{model}"
    return f"{owner}/{model}"


def quantization_in_name(model: str) -> str | None:
    """Weight type that a model's name states: `Qwen2.5-7B-Instruct-AWQ` -> `int4`; None where it states none."""
    words = " ".join(match.group(0) for match in _QUANTISATION.finditer(model.rpartition("/")[2])).lower()
    return next((kind for kind, names in _WEIGHT_TYPES if any(name in words for name in names)), None)


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


def _tokens(name: str) -> frozenset[str]:
    """The words of a GPU's name, spellings unified: SXM4 = SXM, 80GB = 80G, RTX4090 = RTX 4090."""
    text = name.lower().replace("nvidia", " ").replace("geforce", " ").replace("tesla", " ").replace("amd", " ")
    text = re.sub(r"instinct|hbm\d?e?|tensor core|gpu", " ", text)
    text = re.sub(r"sxm\d", "sxm", text)
    text = re.sub(r"(\d+)\s*gi?b\b", r"\1g", text)
    text = re.sub(r"\brtx[\s_-]*(pro|a)?[\s_-]*(\d{4})\b", lambda m: f"rtx {m[1] or ''} {m[2]}", text)
    text = re.sub(r"\ba[\s_-](\d{4})\b", r"a\1", text)
    text = re.sub(r"\brtx\s+a\s+(\d{4})\b", r"rtx a\1", text)
    words = set(re.findall(r"[a-z0-9]+", text))
    return frozenset(words - {"pairwise", "nvlink", "dgx", "ada", "generation", "blackwell", "server", "edition"})


_QUANTISATION = re.compile(
    r"[-_](fp8|fp8[-_]dynamic|w8a8|w4a16|int4|int8|awq|awq[-_]int4|gptq|gptq[-_]int[48]|nvfp4|fp4|gguf|bnb|4bit|8bit|"
    r"quantized\.\w+)(?=$|[-_])",
    re.IGNORECASE,
)
_WEIGHT_TYPES = (
    ("fp8", ("fp8",)),
    ("int8", ("int8", "w8a8", "8bit")),
    ("int4", ("awq", "gptq", "int4", "w4a16", "nvfp4", "fp4", "4bit", "bnb", "gguf")),
)
"""Weight type of the cost model and the memory model -> words of model names; the first that occurs counts."""
_ROLES = re.compile(r"[-_](instruct|chat|base|it|hf|preview)(?=$|[-_])", re.IGNORECASE)


def _model_keys(name: str) -> Iterator[str]:
    """Spellings to look a model up by, most exact first."""
    text = re.sub(r"\(.*?\)", "", name).strip().rstrip("/").lower()
    yield text
    bare = text.rpartition("/")[2]
    yield bare
    plain = _QUANTISATION.sub("", _QUANTISATION.sub("", bare))
    yield plain
    roleless = _ROLES.sub("", _ROLES.sub("", plain))
    yield roleless
    yield re.sub(r"[-_]\d{4}$", "", roleless)  # a release by its month: Qwen3-4B-Instruct-2507
    # An instruct variant without its role word has the geometry of the base, and the other way round.
    yield re.sub(r"^meta-", "", roleless)
    yield re.sub(r"[-_ ]", "", re.sub(r"^meta-", "", roleless))


@cache
def _models() -> tuple[tuple[ModelSpec, tuple[str, ...]], ...]:
    found = []
    for row in _rows("models.csv"):
        aliases = tuple(part.strip() for part in row["also_known_as"].split(";") if part.strip())
        found.append((_model(row), aliases))
    return tuple(found)


@cache
def _model_names() -> Mapping[str, ModelSpec]:
    names: dict[str, ModelSpec] = {}
    for spec, aliases in _models():
        for name in (spec.name, *aliases):
            names.setdefault(next(_model_keys(name)), spec)
    for spec, aliases in _models():  # looser spellings never displace an exact one
        for name in (spec.name, *aliases):
            for key in _model_keys(name):
                names.setdefault(key, spec)
    return names


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

"""How Kubernetes names a GPU."""

from __future__ import annotations

from functools import cache
from importlib import resources

from ruamel.yaml import YAML

PRODUCT_LABEL = "nvidia.com/gpu.product"
"""Node label that NVIDIA's GPU feature discovery sets."""


@cache
def _products() -> dict[str, str]:
    text = (resources.files(__package__ or "") / "gpu_products.yaml").read_text(encoding="utf-8")
    return dict(YAML(typ="safe").load(text))


def find_product(gpu: str | None) -> str | None:
    """Return the label's value for a GPU of the catalogue; None where it is not known."""
    return None if gpu is None else _products().get(gpu)

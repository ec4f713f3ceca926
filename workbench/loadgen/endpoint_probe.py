"""Is anything there, and what does it serve? Asked once, before any load is generated."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ConfigError
from workbench.loadgen.endpoint_events import error_message

_PROBE_S = 10.0
_ALIVE_S = 2.0
ENGINE_FACTS = ("block_size", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "num_blocks")
"""What every run's record has about its engine; our own server tells them, others do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What an endpoint says about the model that will be asked."""

    name: str
    max_model_len: int | None
    engine: Mapping[str, Any]
    """`ENGINE_FACTS`, None where unknown."""


def base_url(url: str) -> str:
    """The address without /v1, which users write or leave out."""
    return url.rstrip("/").removesuffix("/v1")


def open_directly(request: str | urllib.request.Request, *, timeout_s: float) -> Any:
    """The server's answer, a context manager. No proxy of the environment: it would be part of what is measured."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout_s)


def answers(url: str) -> bool:
    """Something speaks HTTP at the address, and does not say that it is still getting ready."""
    try:
        with open_directly(f"{url}/v1/models", timeout_s=_ALIVE_S):
            return True
    except urllib.error.HTTPError as error:
        with error:
            return error.code not in (502, 503, 504)
    except (OSError, ValueError, http.client.HTTPException):
        return False


def probe(url: str, *, model: str | None, api_key_env: str | None, timeout_s: float) -> ServedModel:
    """Ask `url`/v1/models. Raises `ConfigError` if nothing usable answers or `model` is not served."""
    headers = {"Accept": "application/json"}
    if api_key_env is not None:
        key = os.environ.get(api_key_env)
        if not key:
            raise ConfigError(f"target.api_key_env: the environment variable {api_key_env} is not set. Export the key")
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{url}/v1/models", headers=headers)
    try:
        with open_directly(request, timeout_s=min(timeout_s, _PROBE_S)) as answer:
            listing = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return _without_listing(url, model, error)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise ConfigError(
            f"target.url: no OpenAI-compatible server answers at {url} ({text}). Start it or correct the address"
        ) from error
    return _served(url, model, listing)


def _without_listing(url: str, model: str | None, error: urllib.error.HTTPError) -> ServedModel:
    """Some servers do not list their models; then the name must be given."""
    if error.code in (401, 403):
        raise ConfigError(
            f"target.api_key_env: {url} refuses the key or its absence (HTTP {error.code}). Name the variable that "
            "holds a valid key"
        ) from error
    if error.code not in (404, 405, 501):
        message = error_message(error.read(2000).decode("utf-8", errors="replace"))
        raise ConfigError(f"target.url: {url}/v1/models answers HTTP {error.code}: {message}") from error
    if model is None:
        raise ConfigError(f"target.model: is missing: {url} does not list its models. Name the one to ask") from error
    return ServedModel(name=model, max_model_len=None, engine=dict.fromkeys(ENGINE_FACTS))


def _served(url: str, model: str | None, listing: Any) -> ServedModel:
    cards = listing.get("data") if isinstance(listing, dict) else None
    cards = [card for card in cards if isinstance(card, dict) and "id" in card] if isinstance(cards, list) else []
    if not cards:
        raise ConfigError(f"target.url: {url}/v1/models lists no model. Is it an OpenAI-compatible server?")
    names = [str(card["id"]) for card in cards]
    if model is not None and model not in names:
        raise ConfigError(f"target.model: {url} serves {', '.join(names[:5])} (got {model!r}). Use one of these")
    card = cards[0 if model is None else names.index(model)]
    length, engine = card.get("max_model_len"), card.get("engine")
    known = engine if isinstance(engine, dict) else {}
    return ServedModel(
        name=str(card["id"]),
        max_model_len=length if isinstance(length, int) and length > 0 else None,
        engine={name: known.get(name) for name in ENGINE_FACTS},
    )

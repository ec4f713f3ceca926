"""The server as a process: port, engine, HTTP."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import uvicorn

from engine.async_llm import AsyncLLM, EngineStopped
from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import ConfigError, ModelLoadError
from engine.models.tokenizer import Tokenizer, load_tokenizer
from engine.server.app import create_app
from engine.warm_up import warm_up

_KEEP_ALIVE_S = 65
"""Idle connections are kept longer than clients usually keep theirs, so that no request meets a closing one."""
_SHUTDOWN_S = 1


def serve(
    config: EngineConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    served_name: str | None = None,
    on_ready: Callable[[str, str], None] = lambda name, url: None,
) -> None:
    """Serve until SIGINT or SIGTERM. `on_ready(served name, url)` is called once requests are accepted.

    Raises `ConfigError` (also for an address that cannot be listened on) or `ModelLoadError` before that.
    """
    listener = bind(host, port)
    with contextlib.closing(listener):
        core, resolved = build_engine(config)
        llm = AsyncLLM(warm_up(core, resolved))
        name = served_name or resolved.config.model.model
        app = create_app(llm, resolved, _find_tokenizer(resolved.config.model.model), name)
        settings = uvicorn.Config(
            app,
            log_config=None,  # an embedding program's logging is its own
            log_level="error",
            access_log=False,
            lifespan="on",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        Server(settings, llm, lambda: on_ready(name, url_of(listener))).run(sockets=[listener])


class Server(uvicorn.Server):
    """Says when it is ready, and ends open streams when it is told to stop."""

    def __init__(self, config: uvicorn.Config, llm: AsyncLLM, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._llm, self._on_ready = llm, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._llm.fail_open(EngineStopped("the server is shutting down"))
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """A socket at the address, before the model is loaded: a taken port is known at once. Raises `ConfigError`."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # With the protocol named, or asyncio leaves Nagle's algorithm on and tokens wait 40 ms for each other.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise ConfigError(f"host: cannot listen on {host} ({error.strerror or error})") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1)  # without it two processes could bind the port while both load their model
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"port: cannot listen on {host}:{port} ({error.strerror or error}). Choose another --port, or 0 for any"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The address as clients write it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _find_tokenizer(model: str) -> Tokenizer | None:
    """None for a model that has none: it serves prompts of token ids."""
    try:
        return load_tokenizer(model)
    except ModelLoadError:
        return None

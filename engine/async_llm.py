"""The engine behind asyncio: the core steps in one thread of its own, tokens come back to the event loop.

    event loop                                       engine thread
    submit(), abort()  -- commands (SimpleQueue) -->  add / abort, then step
    TokenStream        <-- one call per step -------  outputs of the step

The core belongs to the engine thread alone. Everything else here belongs to the event loop, so nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from engine.engine_core import EngineCore
from engine.errors import EngineError, RequestRefused
from engine.outputs import RequestOutput
from engine.parallel_sampling import sample_id
from engine.request import Request

logger = logging.getLogger(__name__)


class EngineStopped(EngineError):
    """The engine broke or was shut down; nothing can be served any more."""


class TokenNews(NamedTuple):
    """One token. A named tuple: one is made for every token."""

    choice: int
    """Which sequence of the stream: prompt index x n + sample."""
    token_id: int
    finish_reason: str | None
    """`stop` or `length`; None while the sequence goes on."""


class TokenStream:
    """The tokens of one or several requests that were submitted together; iterate once, to the end or to an error.

    Each item is the list of tokens that arrived since the last one, so a slow reader costs fewer wake-ups, not more
    memory per token. Iterating raises `RequestRefused` if one of the requests can never be served (the others are
    dropped then), `EngineStopped` if the engine broke.
    """

    def __init__(self, requests: Sequence[Request], submitted_s: float) -> None:
        self.requests = requests
        self.submitted_s = submitted_s
        """Engine clock, seconds."""
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.num_output_tokens = 0
        self.num_cached_tokens = 0
        """Prompt tokens found in the prefix cache, over all requests; complete when every sequence has a token."""
        self._num_open = sum(request.sampling.n for request in requests)
        self._news: list[TokenNews] = []
        self._error: EngineError | None = None
        self._is_cut = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_complete(self) -> bool:
        """Every sequence came to its own end."""
        return self.is_done and not self._is_cut

    @property
    def is_done(self) -> bool:
        """Every sequence has ended, or the stream broke or was aborted."""
        return self._num_open == 0

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> list[TokenNews]:
        while not self._news:
            if self._error is not None:
                raise self._error
            if self._num_open == 0:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        news, self._news = self._news, []
        return news

    def _push(self, choice: int, output: RequestOutput, now_s: float) -> None:
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.last_token_s = now_s
        self.num_output_tokens += len(output.new_token_ids)
        last = len(output.new_token_ids) - 1
        for i, token_id in enumerate(output.new_token_ids):
            self._news.append(TokenNews(choice, token_id, output.finish_reason if i == last else None))
        if output.finish_reason is not None:
            self._num_open -= 1
        self._wake()

    def _end(self, error: EngineError | None) -> None:
        self._num_open, self._error, self._is_cut = 0, error, True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Place:
    """Where the outputs of one sequence go."""

    __slots__ = ("choice", "num_new_prompt_tokens", "stream")

    def __init__(self, stream: TokenStream, choice: int, num_new_prompt_tokens: int) -> None:
        self.stream, self.choice = stream, choice
        self.num_new_prompt_tokens = num_new_prompt_tokens  # until its first token; 0 for all but the first sample


class AsyncLLM:
    """Runs `core` in its own thread between `start()` and `stop()`. All methods are for the event loop only."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.clock = core.clock
        self.num_prompt_tokens = 0
        """Of requests that got their first token."""
        self.num_generation_tokens = 0
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._places: dict[str, _Place] = {}
        self._failure: EngineStopped | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Start the engine thread."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Let the current step end, fail what is open, free the model."""
        self.fail_open(EngineStopped("the engine was shut down"))
        self._commands.put(None)
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
        self.core.close()

    async def __aenter__(self) -> AsyncLLM:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def failure(self) -> EngineStopped | None:
        """Why nothing can be served any more; None while all is well."""
        return self._failure

    @property
    def num_open(self) -> int:
        """Sequences that have not ended."""
        return len(self._places)

    def submit(self, requests: Sequence[Request]) -> TokenStream:
        """Queue requests that are answered together. Raises `EngineStopped`; a refusal comes out of the stream."""
        if self._failure is not None:
            raise self._failure
        stream = TokenStream(requests, self.clock.now())
        choice = 0
        for request in requests:
            for sample in range(request.sampling.n):
                num_new = request.num_prompt_tokens if sample == 0 else 0
                self._places[sample_id(request.request_id, sample)] = _Place(stream, choice, num_new)
                choice += 1
        self._commands.put(partial(self._add, stream))
        return stream

    def abort(self, stream: TokenStream) -> None:
        """End what is still open of a stream; its iteration ends."""
        if not stream.is_done:
            self._drop(stream)
            stream._end(None)

    def fail_open(self, failure: EngineStopped) -> None:
        """Nothing can be served from now on: end every open stream with `failure`."""
        if self._failure is None:
            self._failure = failure
        for stream in {id(place.stream): place.stream for place in self._places.values()}.values():
            self._drop(stream)
            stream._end(self._failure)

    # -- engine thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_commands():
                outputs = self.core.step()
                self.core.step_stats.clear()
                if outputs:
                    self._call(partial(self._deliver, outputs))
        except BaseException as error:
            logger.exception("the engine broke")
            reason = (str(error) or "no message").splitlines()[0]
            failure = EngineStopped(f"the engine stopped after {type(error).__name__}: {reason}. Restart it")
            failure.__cause__ = error
            self._call(partial(self.fail_open, failure))

    def _take_commands(self) -> bool:
        """Carry out what the event loop asked for; waits while there is nothing to compute. False: stop."""
        commands = self._commands
        while not commands.empty() or not self.core.scheduler.has_requests():
            command = commands.get()
            if command is None:
                return False
            command()
        return True

    def _add(self, stream: TokenStream) -> None:
        added: list[str] = []
        try:
            for request in stream.requests:
                self.core.add_request(request)
                added.append(request.request_id)
        except RequestRefused as error:
            for request_id in added:
                self.core.abort(request_id)
            self._call(partial(self._on_refusal, stream, error))

    def _call(self, function: Callable[[], None]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function)

    # -- event loop ---------------------------------------------------------------------------------------------------

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        now_s = self.clock.now()
        places = self._places
        for output in outputs:
            place = places.get(output.request_id)
            if place is None:  # aborted while the step ran
                continue
            stream = place.stream
            self.num_generation_tokens += len(output.new_token_ids)
            if place.num_new_prompt_tokens:
                self.num_prompt_tokens += place.num_new_prompt_tokens
                stream.num_cached_tokens += output.num_cached_tokens
                place.num_new_prompt_tokens = 0
            stream._push(place.choice, output, now_s)
            if output.finish_reason is not None:
                del places[output.request_id]
                if stream.is_done:
                    self._forget_samples(stream)

    def _forget_samples(self, stream: TokenStream) -> None:
        """The core remembers which samples belong together until the request is aborted, even if all have ended."""
        for request in stream.requests:
            if request.sampling.n > 1:
                self._abort_later(request.request_id)

    def _abort_later(self, request_id: str) -> None:
        self._commands.put(partial(self.core.abort, request_id))

    def _drop(self, stream: TokenStream) -> None:
        for request in stream.requests:
            for sample in range(request.sampling.n):
                self._places.pop(sample_id(request.request_id, sample), None)
            self._abort_later(request.request_id)

    def _on_refusal(self, stream: TokenStream, error: RequestRefused) -> None:
        if not stream.is_done:
            self._drop(stream)
            stream._end(error)

"""One request from submission to its last token: answers as a stream of events or as one object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from engine.async_llm import AsyncLLM, EngineStopped, TokenNews, TokenStream
from engine.errors import RequestRefused
from engine.models.tokenizer import Tokenizer
from engine.server.detokenizer import Detokenizer
from engine.server.errors import ApiError
from engine.server.formats import DONE, Choice, Format, Usage
from engine.server.metrics import ServerMetrics

_EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not collect events
]


class Generation(Response):
    """The response. It runs the request itself, so that it can answer with an error until the first token is there,
    and aborts it when the client goes away."""

    def __init__(
        self,
        llm: AsyncLLM,
        stream: TokenStream,
        form: Format,
        *,
        tokenizer: Tokenizer | None,
        metrics: ServerMetrics,
        streams_events: bool,
        includes_usage: bool,
    ) -> None:
        self._llm, self._stream, self._format, self._metrics = llm, stream, form, metrics
        num_choices = sum(request.sampling.n for request in stream.requests)
        self._texts = [Detokenizer(tokenizer) for _ in range(num_choices)]
        self._streams_events, self._includes_usage = streams_events, includes_usage
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._abort_on_disconnect(receive):
            try:
                answer = self._send_events if self._streams_events else self._send_whole
                await answer(scope, receive, send)
            finally:
                self._llm.abort(self._stream)
                self._metrics.observe(self._stream)

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        texts: list[list[str]] = [[] for _ in self._texts]
        reasons: list[str | None] = [None] * len(texts)
        try:
            async for news in self._stream:
                for choice, token_id, reason in news:
                    texts[choice].append(self._texts[choice].add(token_id, is_last=reason is not None))
                    reasons[choice] = reason
        except (RequestRefused, EngineStopped) as error:
            await _api_error(error).response()(scope, receive, send)
            return
        choices = [
            Choice(text="".join(pieces), finish_reason=reason) for pieces, reason in zip(texts, reasons, strict=True)
        ]
        await JSONResponse(self._format.whole(choices, self._usage()))(scope, receive, send)

    async def _send_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One event per token; tokens that wait together leave in one write."""
        started = [False] * len(self._texts)
        has_begun = False
        try:
            async for news in self._stream:
                if not has_begun:  # not before: until here the request can still be refused
                    has_begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM_HEADERS})
                body = "".join([self._event(each, started) for each in news]).encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except (RequestRefused, EngineStopped) as error:
            refused = _api_error(error)
            if not has_begun:
                await refused.response()(scope, receive, send)
                return
            # The status is out; clients look for an error object among the events.
            body = b"data: " + bytes(refused.response().body) + b"\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        if not has_begun:  # the client left before the first token
            return
        usage = self._format.usage_event(self._usage()).encode() if self._includes_usage else b""
        await send({"type": "http.response.body", "body": usage + DONE, "more_body": False})

    def _event(self, news: TokenNews, started: list[bool]) -> str:
        choice, token_id, reason = news
        text = self._texts[choice].add(token_id, is_last=reason is not None)
        is_first, started[choice] = not started[choice], True
        return self._format.event(choice, text, reason, is_first=is_first)

    def _usage(self) -> Usage:
        stream = self._stream
        return Usage(
            num_prompt_tokens=sum(request.num_prompt_tokens for request in stream.requests),
            num_output_tokens=stream.num_output_tokens,
            num_cached_tokens=stream.num_cached_tokens,
        )

    @asynccontextmanager
    async def _abort_on_disconnect(self, receive: Receive) -> AsyncIterator[None]:
        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._llm.abort(self._stream)

        watcher = asyncio.create_task(watch())
        try:
            yield
        finally:
            watcher.cancel()


def _api_error(error: RequestRefused | EngineStopped) -> ApiError:
    if isinstance(error, RequestRefused):
        # The id in front of the message is the server's own; it tells the client nothing.
        message = str(error).partition("': ")[2] or str(error)
        return ApiError(400, message, code="request_refused")
    return ApiError(503, str(error), code="engine_stopped")

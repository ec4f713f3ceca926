"""The routes."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import HTTPException
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from engine.async_llm import AsyncLLM, EngineStopped
from engine.models.tokenizer import Tokenizer
from engine.request import Request as EngineRequest
from engine.resolve import ResolvedConfig
from engine.server.chat import chat_prompt
from engine.server.errors import ApiError, from_validation
from engine.server.formats import Format, Kind
from engine.server.generation import Generation
from engine.server.metrics import ServerMetrics
from engine.server.protocol import DEFAULT_MAX_TOKENS, ChatBody, CompletionBody, GenerationBody, Prompt

_DECISIVE = ("block_size", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "num_blocks")


class Frontend:
    """Turns bodies into requests of one engine."""

    def __init__(self, llm: AsyncLLM, resolved: ResolvedConfig, tokenizer: Tokenizer | None, served_name: str) -> None:
        self.llm, self.resolved, self.tokenizer, self.served_name = llm, resolved, tokenizer, served_name
        self.metrics = ServerMetrics(llm, served_name)
        self.created = int(time.time())
        self._numbers = itertools.count(1)

    def complete(self, body: CompletionBody) -> Response:
        self._check(body)
        prompts = [self._token_ids(prompt) for prompt in body.prompts()]
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        return self._generate("completion", body, prompts, max_tokens)

    def chat(self, body: ChatBody) -> Response:
        self._check(body)
        if self.tokenizer is None:
            raise ApiError(400, "messages: this model has no tokenizer. Use /v1/completions with token ids")
        prompt = chat_prompt(body.messages, self.tokenizer, self.resolved.spec)
        asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        return self._generate("chat", body, [prompt], self.resolved.max_model_len if asked is None else asked)

    def model_card(self) -> dict[str, Any]:
        """As in vLLM, with `max_model_len`; `engine` is ours: what a load generator stores with its run."""
        values = {**self.resolved.config.to_dict(), "num_blocks": self.resolved.num_blocks}
        return {
            "id": self.served_name,
            "object": "model",
            "created": self.created,
            "owned_by": "llm-serving-workbench",
            "max_model_len": self.resolved.max_model_len,
            "engine": {name: values[name] for name in _DECISIVE},
        }

    def _check(self, body: GenerationBody) -> None:
        if body.model is not None and body.model != self.served_name:
            raise ApiError(
                404,
                f"model: {body.model!r} is not served here. The model served is {self.served_name!r}",
                param="model",
                code="model_not_found",
            )
        body.check_served()

    def _token_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ApiError(400, "prompt: this model has no tokenizer. Give token ids", param="prompt")
            return self.tokenizer.encode(prompt)
        size = self.resolved.spec.vocab_size
        if prompt and max(prompt) >= size:
            raise ApiError(
                400, f"prompt: token ids must be under {size}, the vocabulary (got {max(prompt)})", param="prompt"
            )
        return prompt

    def _generate(self, kind: Kind, body: GenerationBody, prompts: Sequence[list[int]], max_tokens: int) -> Response:
        limit = self.resolved.max_model_len
        for prompt in prompts:
            if not 0 < len(prompt) < limit:
                raise ApiError(
                    400,
                    f"the prompt has {len(prompt)} tokens, but must have 1 to {limit - 1}: max_model_len is {limit} "
                    "and one output token must fit",
                    param="messages" if kind == "chat" else "prompt",
                    code="context_length_exceeded" if prompt else None,
                )
        response_id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{next(self._numbers)}"
        sampling = body.sampling(max_tokens, self.resolved.spec.eos_token_ids[1:])
        arrival_s = self.llm.clock.now()
        requests = [
            # The scheduler clamps max_tokens to what the window leaves.
            EngineRequest(
                f"{response_id}-{index}",
                prompt,
                sampling,
                arrival_time_s=arrival_s,
                eos_token_id=next(iter(self.resolved.spec.eos_token_ids), None),
            )
            for index, prompt in enumerate(prompts)
        ]
        try:
            stream = self.llm.submit(requests)
        except EngineStopped as error:
            raise ApiError(503, str(error), code="engine_stopped") from error
        return Generation(
            self.llm,
            stream,
            Format(kind, response_id=response_id, created=int(time.time()), model=self.served_name),
            tokenizer=self.tokenizer,
            metrics=self.metrics,
            streams_events=bool(body.stream),
            includes_usage=body.includes_usage,
        )


def create_app(llm: AsyncLLM, resolved: ResolvedConfig, tokenizer: Tokenizer | None, served_name: str) -> FastAPI:
    """The application; the engine thread runs for as long as the application does."""
    frontend = Frontend(llm, resolved, tokenizer, served_name)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with llm:
            yield

    app = FastAPI(title="LLM serving workbench", lifespan=lifespan)

    # Bodies are parsed here and not by the framework: its errors have another format, and its way costs more time.
    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return frontend.complete(CompletionBody.model_validate_json(await request.body()))

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return frontend.chat(ChatBody.model_validate_json(await request.body()))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [frontend.model_card()]}

    @app.get("/health")
    async def health() -> Response:
        if llm.failure is not None:
            return ApiError(503, str(llm.failure), code="engine_stopped").response()
        return Response(status_code=200)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(frontend.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.exception_handler(ApiError)
    async def on_api_error(request: Request, error: ApiError) -> JSONResponse:
        return error.response()

    @app.exception_handler(ValidationError)
    async def on_validation_error(request: Request, error: ValidationError) -> JSONResponse:
        return from_validation(error).response()

    @app.exception_handler(StarletteHTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> JSONResponse:
        return ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}").response()

    return app

"""Bodies of requests: the part of OpenAI's interface that is served, and clear refusals of what is not."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from engine.errors import ConfigError
from engine.sampling_params import SamplingParams
from engine.server.errors import ApiError

MAX_N = 128
"""Answers to one prompt, as in OpenAI's server: one request must not hold up all others."""
DEFAULT_MAX_TOKENS = 16
"""Of completions, as in OpenAI's and vLLM's servers; a chat may fill the model's window."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "echo": (None, False),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "prompt_logprobs": (None,),
    "suffix": (None, ""),
    "stop": (None, [], ""),
    "best_of": (None, 1),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "tools": (None, []),
    "response_format": (None, {"type": "text"}),
}
"""What is not served -> values that ask for nothing. All other unknown names are ignored, as OpenAI's server does."""

_REMEDIES = {"stop": " Use stop_token_ids"}

TokenId = Annotated[StrictInt, Field(ge=0)]
Prompt = str | list[TokenId]


class StreamOptions(BaseModel):
    """What a stream contains besides tokens."""

    include_usage: bool = False
    """A last event with the token counts."""


class GenerationBody(BaseModel):
    """What both kinds of request have in common. null means the default everywhere."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    temperature: float | None = None
    """Default 1, as in OpenAI's server; the engine itself defaults to greedy."""
    top_p: float | None = None
    top_k: int | None = None
    """0 or -1 = all."""
    seed: int | None = None
    n: int | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def check_served(self) -> None:
        """Raise `ApiError` (400) if something is asked for that is not served."""
        for name, value in (self.model_extra or {}).items():
            if name in _NEUTRAL and value not in _NEUTRAL[name]:
                raise ApiError(
                    400,
                    f"{name}: is not served (got {value!r}). Leave it out.{_REMEDIES.get(name, '')}",
                    param=name,
                    code="unsupported_parameter",
                )

    def sampling(self, max_tokens: int, more_stop_token_ids: tuple[int, ...]) -> SamplingParams:
        """Sampling parameters; raises `ApiError` (400) for values out of range."""
        if self.n is not None and self.n > MAX_N:
            raise ApiError(400, f"n: must be at most {MAX_N} (got {self.n})", param="n")
        stops = () if self.ignore_eos else more_stop_token_ids
        try:
            return SamplingParams(
                max_tokens=max_tokens,
                temperature=1.0 if self.temperature is None else self.temperature,
                top_p=1.0 if self.top_p is None else self.top_p,
                top_k=max(self.top_k, 0) if self.top_k is not None and self.top_k >= -1 else (self.top_k or 0),
                seed=self.seed,
                stop_token_ids=(*(self.stop_token_ids or ()), *stops),
                ignore_eos=self.ignore_eos,
                n=1 if self.n is None else self.n,
            )
        except ConfigError as error:
            raise ApiError(400, str(error), param=str(error).partition(":")[0]) from error


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Prompt | list[Prompt]
    max_tokens: int | None = None

    def prompts(self) -> list[Prompt]:
        """One or several: a list of numbers is one prompt."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise ApiError(400, "prompt: must not be empty", param="prompt")
        token_ids = [item for item in prompt if isinstance(item, int)]
        return [token_ids] if token_ids else [item for item in prompt if not isinstance(item, int)]


class TextPart(BaseModel):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn of a chat."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[TextPart] | None = None

    def text(self) -> str:
        """The content, parts joined."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

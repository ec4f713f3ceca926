"""Offline generation: prompts in, completions out, in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from operator import index
from typing import Any

from engine.build import build_engine
from engine.clock import Clock
from engine.config import EngineConfig
from engine.engine_core import EngineCore
from engine.errors import ConfigError
from engine.models.tokenizer import Tokenizer, load_tokenizer
from engine.parallel_sampling import sample_id
from engine.request import Request
from engine.resolve import ResolvedConfig
from engine.sampling_params import SamplingParams

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sample."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    """`stop` or `length`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """All samples of one prompt."""

    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    num_cached_tokens: int
    num_preemptions: int

    @property
    def text(self) -> str:
        """Of the first sample."""
        return self.completions[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Of the first sample."""
        return self.completions[0].token_ids


@dataclass(slots=True)
class _Collected:
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0


class LLM:
    """An engine of one's own: `LLM("tiny", block_size=8).generate(["Hello"])`.

    Options are the fields of `EngineConfig`'s slices, by name. Raises `ConfigError` (unknown name, bad value, no room
    for a KV cache) or `ModelLoadError` at construction.
    """

    def __init__(self, model: str = "tiny", *, clock: Clock | None = None, **options: Any) -> None:
        self.core: EngineCore
        self.resolved: ResolvedConfig
        self.core, self.resolved = build_engine(EngineConfig.from_dict({"model": model, **options}), clock=clock)
        self.tokenizer: Tokenizer = load_tokenizer(self.resolved.config.model.model)
        self._num_requests = 0

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Generation]:
        """Complete every prompt (a text or token ids); `sampling` is for all, or one per prompt.

        Raises `RequestRefused` before anything runs if one prompt can never be served.
        """
        many = _as_list(prompts)
        params = [sampling or SamplingParams()] * len(many) if not isinstance(sampling, Sequence) else list(sampling)
        if len(params) != len(many):
            raise ConfigError(
                f"sampling: give one for all or one per prompt (got {len(params)} for {len(many)} prompts)"
            )
        requests = [self._request(prompt, each) for prompt, each in zip(many, params, strict=True)]
        added: list[str] = []
        try:
            for request in requests:
                self.core.add_request(request)
                added.append(request.request_id)
            collected = self._collect()
        except BaseException:
            for request_id in added:
                self.core.abort(request_id)
            raise
        return [self._generation(request, collected) for request in requests]

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], *, width: int, max_tokens: int = 16, length_penalty: float = 1.0
    ) -> list[Generation]:
        """The `width` best continuations of each prompt, best first, searched one prompt after the other.

        Raises `RequestRefused` for a width whose beams do not all fit.
        """
        generations = []
        search = self.core.beam_search
        for prompt in _as_list(prompts):
            request = self._request(prompt, SamplingParams(max_tokens=max_tokens))
            beam = search.start(request, width=width, length_penalty=length_penalty)
            try:
                self.core.add_request(beam)
                self._collect()
            except BaseException:
                self.core.abort(beam.request_id)
                raise
            generations.append(
                Generation(
                    prompt_token_ids=tuple(request.all_token_ids),
                    completions=tuple(
                        Completion(
                            text=self.tokenizer.decode(found.token_ids),
                            token_ids=found.token_ids,
                            finish_reason=found.finish_reason,
                        )
                        for found in search.take(beam.request_id)
                    ),
                    num_cached_tokens=beam.num_cached_tokens or 0,
                    num_preemptions=beam.num_preemptions,
                )
            )
        return generations

    def close(self) -> None:
        """Free the model and the cache."""
        self.core.close()

    def _request(self, prompt: Prompt, sampling: SamplingParams) -> Request:
        vocabulary = self.resolved.spec.vocab_size
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else _token_ids(prompt, vocabulary)
        self._num_requests += 1
        return Request(
            f"generate-{self._num_requests}",
            tokens,
            sampling,
            arrival_time_s=self.core.clock.now(),
            eos_token_id=self.tokenizer.eos_token_id,
        )

    def _collect(self) -> dict[str, _Collected]:
        collected: dict[str, _Collected] = {}
        while self.core.has_unfinished():
            for output in self.core.step():
                entry = collected.setdefault(output.request_id, _Collected())
                entry.token_ids += output.new_token_ids
                entry.finish_reason = output.finish_reason
                entry.num_cached_tokens = output.num_cached_tokens
                entry.num_preemptions = output.num_preemptions
            self.core.step_stats.clear()
        return collected

    def _generation(self, request: Request, collected: dict[str, _Collected]) -> Generation:
        samples = [collected[sample_id(request.request_id, i)] for i in range(request.sampling.n)]
        return Generation(
            prompt_token_ids=tuple(request.all_token_ids[: request.num_prompt_tokens]),
            completions=tuple(
                Completion(
                    text=self.tokenizer.decode(sample.token_ids),
                    token_ids=tuple(sample.token_ids),
                    finish_reason=sample.finish_reason,
                )
                for sample in samples
            ),
            num_cached_tokens=samples[0].num_cached_tokens,
            num_preemptions=max(sample.num_preemptions for sample in samples),
        )


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many: a text is one, and so is a sequence of numbers. Raises `ConfigError` for what is neither."""
    if isinstance(prompts, str):
        return [prompts]
    many = _items(prompts, "prompts: must be texts or sequences of token ids")
    return [many] if many and all(isinstance(item, Number) for item in many) else many


def _items(given: Any, rule: str) -> list[Any]:
    """Of a sequence, an array or a tensor. Raises `ConfigError`, which begins with the rule, for anything else."""
    values = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(values, bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"{rule} (got {given!r:.40})")
    return list(values)


def _token_ids(prompt: Sequence[int], vocabulary: int) -> list[int]:
    """Raises `ConfigError` for what is no sequence of the vocabulary's token ids."""
    rule = f"prompt: token ids must be whole numbers from 0 to {vocabulary - 1}, the model's vocabulary"
    tokens = []
    for token in _items(prompt, "prompt: must be a text or a sequence of token ids"):
        try:
            tokens.append(index(token))
        except TypeError:
            raise ConfigError(f"{rule} (got {token!r:.40})") from None
        if not 0 <= tokens[-1] < vocabulary:
            raise ConfigError(f"{rule} (got {tokens[-1]})")
    return tokens

"""Where prompt tokens come from. Produced per request when asked for, never all at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import numpy as np
import numpy.typing as npt

from workbench.workload.randomness import content_stream
from workbench.workload.traces.table import TokenSpans

TokenArray = npt.NDArray[np.int32]
IntArray = npt.NDArray[np.int64]


class PromptSource(Protocol):
    """Gives the prompt of each request."""

    def token_ids(self, index: int) -> TokenArray:
        """[num_prompt_tokens of request `index`] token ids; equal on every call and in every process."""
        ...

    def fingerprint(self) -> bytes:
        """Digest of everything the token ids depend on."""
        ...


class RememberedPrompts:
    """Prompts of requests that are offered again and again: each is made once, up to `most_tokens` in all (4 bytes
    each)."""

    def __init__(self, source: PromptSource, most_tokens: int = 50_000_000) -> None:
        self._source = source
        self._num_left = most_tokens
        self._known: dict[int, TokenArray] = {}

    def token_ids(self, index: int) -> TokenArray:
        found = self._known.get(index)
        if found is None:
            found = self._source.token_ids(index)
            if len(found) <= self._num_left:
                self._num_left -= len(found)
                self._known[index] = found
        return found

    def fingerprint(self) -> bytes:
        return self._source.fingerprint()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Which token ids a prompt may hold."""

    size: int
    """Ids are below this."""
    first_id: int = 0
    """Ids below this are special tokens that never occur in a prompt."""

    def draw(self, rng: np.random.Generator, count: int) -> TokenArray:
        """[count] uniform token ids."""
        return rng.integers(self.first_id, self.size, size=count, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPrompts:
    """Random tokens behind an optional shared prefix, seeded per request by content: class name and index in it."""

    seed: int
    vocabulary: Vocabulary
    class_names: tuple[str, ...]
    class_index: IntArray
    index_in_class: IntArray
    num_prompt_tokens: IntArray
    num_prefix_tokens: IntArray
    """Tokens shared with the other requests of the class and group."""
    prefix_group: IntArray
    """-1 without a shared prefix."""
    num_header_tokens: IntArray | None = None
    """Tokens of the request's own in front of the shared ones; None: nowhere any."""
    turn: IntArray | None = None
    """Position in the conversation `index_in_class`; None: all alone."""

    def token_ids(self, index: int) -> TokenArray:
        name, number = self.class_names[self.class_index[index]], int(self.index_in_class[index])
        num_prefix = int(self.num_prefix_tokens[index])
        num_header = 0 if self.num_header_tokens is None else int(self.num_header_tokens[index])
        # Draws of one stream: the longer prompt of a later turn begins with the whole earlier conversation.
        count = int(self.num_prompt_tokens[index])
        own = self.vocabulary.draw(
            content_stream(self.seed, "prompt", name, number), max(count - num_prefix - num_header, 0)
        )
        if num_prefix == 0:
            return own
        shared = self.vocabulary.draw(
            content_stream(self.seed, "prefix", name, int(self.prefix_group[index])), num_prefix
        )
        if num_header == 0:
            return np.concatenate([shared, own])
        turn = 0 if self.turn is None else int(self.turn[index])
        header = self.vocabulary.draw(content_stream(self.seed, "header", name, number, turn), num_header)
        return np.concatenate([header, shared, own])[:count]

    def fingerprint(self) -> bytes:
        digest = _digest("random", self.seed, self.vocabulary.size, self.vocabulary.first_id)
        for column in (self.index_in_class, self.num_prefix_tokens, self.prefix_group):
            digest.update(column.tobytes())
        for optional in (self.num_header_tokens, self.turn):
            if optional is not None and optional.any():
                digest.update(optional.tobytes())
        return digest.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedPrompts:
    """Prompts made of blocks named by ids, as in hash-id traces: equal leading ids give equal leading tokens."""

    seed: int
    vocabulary: Vocabulary
    block_tokens: int
    """Tokens per block (after length scaling); a request's last block may be cut."""
    block_ids: IntArray
    """Ids of all requests, request after request."""
    block_offsets: IntArray
    """[n + 1] row i's ids are `block_ids[block_offsets[i] : block_offsets[i + 1]]`."""
    num_prompt_tokens: IntArray

    def token_ids(self, index: int) -> TokenArray:
        ids = self.block_ids[self.block_offsets[index] : self.block_offsets[index + 1]]
        count = int(self.num_prompt_tokens[index])
        blocks = [
            self.vocabulary.draw(content_stream(self.seed, "block", int(block)), self.block_tokens)
            for block in ids[: -(-count // self.block_tokens)]
        ]
        missing = count - len(blocks) * self.block_tokens
        if missing > 0:  # fewer ids than the length needs: the rest is the request's own
            blocks.append(self.vocabulary.draw(content_stream(self.seed, "rest", index), missing))
        return np.concatenate(blocks)[:count] if blocks else np.zeros(0, dtype=np.int32)

    def fingerprint(self) -> bytes:
        digest = _digest("hashed", self.seed, self.vocabulary.size, self.vocabulary.first_id, self.block_tokens)
        digest.update(self.block_ids.tobytes())
        digest.update(self.block_offsets.tobytes())
        return digest.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompts:
    """Real prompts as a tokenizer made them. Ids that the model does not have wrap around; a prompt that must be longer
    than its text goes on with random tokens, one that must be shorter is cut."""

    seed: int
    vocabulary: Vocabulary
    spans: TokenSpans
    num_prompt_tokens: IntArray

    def token_ids(self, index: int) -> TokenArray:
        count = int(self.num_prompt_tokens[index])
        start = int(self.spans.starts[index])
        ids = self.spans.ids[start : min(int(self.spans.ends[index]), start + count)]
        if len(ids) and int(ids.max()) >= self.vocabulary.size:
            ids = ids % self.vocabulary.size
        if len(ids) == count:
            return ids
        rest = self.vocabulary.draw(content_stream(self.seed, "rest", index), count - len(ids))
        return np.concatenate([ids, rest])

    def fingerprint(self) -> bytes:
        digest = _digest("text", self.seed, self.vocabulary.size, self.vocabulary.first_id)
        for column in (self.spans.ids, self.spans.starts, self.spans.ends):
            digest.update(column.tobytes())
        return digest.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPrompts:
    """Some classes take their prompts from a file, row by row; the others generate them."""

    generated: PromptSource
    files: Mapping[int, PromptSource]
    """Number of the class -> prompts of its file's rows."""
    class_index: IntArray
    file_row: IntArray
    """-1 for requests without a file."""
    num_prompt_tokens: IntArray

    def token_ids(self, index: int) -> TokenArray:
        source = self.files.get(int(self.class_index[index]))
        if source is None:
            return self.generated.token_ids(index)
        return source.token_ids(int(self.file_row[index]))[: int(self.num_prompt_tokens[index])]

    def fingerprint(self) -> bytes:
        digest = _digest("mixed")
        digest.update(self.generated.fingerprint())
        for number, source in sorted(self.files.items()):
            digest.update(str(number).encode() + source.fingerprint())
        digest.update(self.file_row.tobytes())
        return digest.digest()


def _digest(kind: str, *numbers: int) -> blake2b:
    return blake2b(" ".join([kind, *map(str, numbers)]).encode(), digest_size=32)

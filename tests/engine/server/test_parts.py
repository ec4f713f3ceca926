"""The parts that need no socket: detokenizer and chat prompts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.models.builtin import BUILTIN_SPECS
from engine.models.tokenizer import ByteTokenizer
from engine.server.chat import chat_prompt
from engine.server.detokenizer import Detokenizer
from engine.server.errors import ApiError
from engine.server.protocol import Message


def pieces_of(token_ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(ByteTokenizer())
    return [detokenizer.add(token, is_last=i == len(token_ids) - 1) for i, token in enumerate(token_ids)]


def test_detokenizer_holds_a_character_back_until_it_is_whole() -> None:
    assert pieces_of(list("aé€b".encode())) == ["a", "", "é", "", "", "€", "b"]


def test_detokenizer_gives_out_what_is_incomplete_at_the_end() -> None:
    assert pieces_of([0x61, 0xE2, 0x82]) == ["a", "", "\ufffd"]


def test_detokenizer_gives_up_on_what_never_becomes_whole() -> None:
    pieces = pieces_of([0x80] * 30 + [0x61])
    assert "".join(pieces).endswith("a")
    assert "".join(pieces).count("\ufffd") == 30


def test_detokenizer_without_tokenizer_gives_empty_text() -> None:
    assert Detokenizer(None).add(5, is_last=True) == ""


class TemplatedTokenizer(ByteTokenizer):
    """Bytes, with a template that uses special tokens."""

    chat_template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"


def test_chat_prompt_puts_special_tokens_as_ids() -> None:
    prompt = chat_prompt([Message(role="user", content="hi")], TemplatedTokenizer(), BUILTIN_SPECS["tiny"])
    assert prompt == [256, *b"[user]hi", 257]


def test_chat_prompt_template_that_refuses_is_a_400() -> None:
    tokenizer = TemplatedTokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ApiError, match="roles must alternate") as caught:
        chat_prompt([Message(role="user", content="hi")], tokenizer, BUILTIN_SPECS["tiny"])
    assert caught.value.status == 400

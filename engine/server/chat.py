"""From messages to a prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from engine.model_spec import ModelSpec
from engine.models.tokenizer import Tokenizer
from engine.server.errors import ApiError
from engine.server.protocol import Message

FALLBACK_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
"""For models that come without a template."""

_BOS, _EOS = "\ue000", "\ue001"
"""Private-use characters that stand for special tokens in the rendered text: their spelling is the tokenizer's."""


def chat_prompt(messages: Sequence[Message], tokenizer: Tokenizer, spec: ModelSpec) -> list[int]:
    """Token ids of a chat, ready for the assistant's turn. Raises `ApiError` (400) if the template refuses it."""
    import jinja2

    turns = [{**(message.model_extra or {}), "role": message.role, "content": message.text()} for message in messages]
    try:
        text = _compiled(tokenizer.chat_template or FALLBACK_TEMPLATE).render(
            messages=turns, add_generation_prompt=True, bos_token=_BOS, eos_token=_EOS
        )
    except jinja2.TemplateError as error:
        raise ApiError(400, f"messages: the model's chat template refuses them ({error})", param="messages") from error
    special = {_BOS: spec.bos_token_id, _EOS: tokenizer.eos_token_id}
    token_ids: list[int] = []
    for piece in re.split(f"([{_BOS}{_EOS}])", text):
        if piece not in special:
            token_ids += tokenizer.encode(piece)
        elif (token_id := special[piece]) is not None:
            token_ids.append(token_id)
    return token_ids


@lru_cache(maxsize=4)
def _compiled(template: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # The settings that model authors write their templates for.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise_exception
    return environment.from_string(template)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)

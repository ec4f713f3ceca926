"""Text of a growing sequence of tokens, piece by piece."""

from __future__ import annotations

from engine.models.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"
_MAX_HELD_TOKENS = 8
"""A character has at most 4 bytes; what is still incomplete after this many tokens is no UTF-8."""


class Detokenizer:
    """Gives each token's text as soon as it is whole characters; pieces of valid UTF-8 add up to the decoded sequence.

    Only a short window is decoded for each token, not the whole sequence: some tokenizers decode a token differently
    at the beginning of a text, so the window starts at tokens whose text was given out before.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        """Without a tokenizer every token's text is empty."""
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._num_given = 0  # leading tokens of the window whose text was given out
        self._given_text = ""

    def add(self, token_id: int, *, is_last: bool) -> str:
        """Text that became whole with this token; the last one gives out what is left."""
        if self._tokenizer is None:
            return ""
        self._window.append(token_id)
        text = self._tokenizer.decode(self._window)
        num_held = len(self._window) - self._num_given
        if text.endswith(_INCOMPLETE) and not is_last and num_held <= _MAX_HELD_TOKENS:
            return ""
        piece = text[len(self._given_text) :]
        self._window = self._window[self._num_given :]
        self._num_given = len(self._window)
        self._given_text = self._tokenizer.decode(self._window)
        return piece

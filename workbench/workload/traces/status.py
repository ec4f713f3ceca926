"""Whether a column says that a request failed: a boolean that names a failure means the opposite of one of success."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_FAILURE = re.compile(
    r"(^|[_.\s-])(is_?|has_?|was_?)?(error|errors|err|fail|failed|failure|cancel|cancelled|canceled|abort|aborted|timeout|"
    r"timed_?out|rejected|exception|dropped|refused)$",
    re.IGNORECASE,
)
_SUCCESS = re.compile(
    r"(^|[_.\s-])(is_?|has_?|was_?)?(success|successful|succeeded|ok|completed|finished|done)$", re.IGNORECASE
)
_FALSE = frozenset({"", "0", "false", "no", "n", "f", "none", "null", "nan", "[]", "{}"})
_FINE = frozenset({"ok", "200", "success", "succeeded", "completed", "complete", "finished", "done", "stop", "length"})
_KEYS = ("error", "is_error", "failed", "is_failed", "cancelled", "canceled", "is_cancelled", "aborted", "timeout",
         "timed_out", "rejected", "success", "succeeded")  # fmt: skip
"""Keys of a request's object that say how it ended, where the user names none."""
_STATES = ("status", "state", "outcome")
"""Keys that may say so: only words and codes of failure count, since the others' words are not known."""


def is_failure(name: str, value: Any) -> bool:
    """Return what a status column says of a row, by the column's name and the cell."""
    text = "" if value is None else str(value).strip().lower().removesuffix(".0")
    if _FAILURE.search(name):
        return text not in _FALSE and text not in _FINE
    if _SUCCESS.search(name):
        return text in _FALSE if text else False
    return text not in _FINE and text not in ("", "0", "true")


def names_failure(row: Mapping[str, Any]) -> bool:
    """Return whether an object's own keys say that its request failed."""
    states = [str(row[key]).strip() for key in _STATES if isinstance(row.get(key), (str, int))]
    if any(_FAILURE.fullmatch(state) or re.fullmatch(r"[45]\d\d", state) for state in states):
        return True
    return any(is_failure(key, row[key]) for key in _KEYS if key in row)

"""Errors as HTTP clients see them: OpenAI's error object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import ValidationError


class ApiError(Exception):
    """A request that is answered with an error object."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> Mapping[str, Any]:
        """The error object; 4xx are the client's fault, 5xx the server's."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status)


def from_validation(error: ValidationError) -> ApiError:
    """What is wrong with a body, as a 400: the first error, of those that lie deepest in the kinds a value may have."""
    errors = error.errors(include_url=False, include_context=False)
    worst = max(errors, key=lambda each: _depth(each["loc"]) if each["loc"][:1] == errors[0]["loc"][:1] else -1)
    if worst["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON ({worst['msg']})", code="invalid_json")
    param = str(worst["loc"][0]) if worst["loc"] else None
    got = repr(worst["input"])
    shown = got if len(got) <= 60 else f"{got[:57]}..."
    rule = None if worst["type"] == "missing" else _RULES.get(param)
    return ApiError(400, f"{param or 'body'}: {rule or worst['msg'].lower()} (got {shown})", param=param)


_RULES: Mapping[str | None, str] = {
    "prompt": "must be a text, a list of token ids (whole numbers from 0), or a list of texts and such lists"
}
"""Where a value may be of several kinds, what is expected by any of them says too little."""


def _depth(location: Sequence[int | str]) -> int:
    """In how many lists."""
    return sum(isinstance(part, int) for part in location)

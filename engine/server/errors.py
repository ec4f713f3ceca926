"""Errors as HTTP clients see them: OpenAI's error object."""

from __future__ import annotations

from collections.abc import Mapping
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
    """The first thing that is wrong with a body, as a 400."""
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON ({first['msg']})", code="invalid_json")
    where = [str(part) for part in first["loc"]]
    param = where[0] if where else None
    got = repr(first["input"])
    shown = got if len(got) <= 60 else f"{got[:57]}..."
    return ApiError(400, f"{param or 'body'}: {first['msg'].lower()} (got {shown})", param=param)

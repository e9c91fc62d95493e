"""Errors as clients of OpenAI and of Anthropic read them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi.responses import JSONResponse

from gym_serve.errors import Full, RequestError, TooLong, Unknown

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    499: "request_cancelled",
    503: "overloaded_error",
}
ONCE = {"x-should-retry": "false"}  #: tells clients that another try would end the same way
ANTHROPIC = "/v1/messages"  #: below it, errors are written as Anthropic's


class HTTPProblem(RequestError):
    """What is wrong with a request before an engine sees it."""

    def __init__(
        self, status: int, why: str, key: str = "", code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Say the status, the reason, and the field that it is about."""
        super().__init__(why, key=key)
        self.http, self.code_name, self.headers = status, code, dict(headers or {})


@contextmanager
def told_as(names: Mapping[str, str]) -> Iterator[None]:
    """Have errors name the fields of a client, where its form has others than OpenAI's chat."""
    try:
        yield
    except RequestError as error:
        problem = error.problems[0]
        if problem.key not in names:
            raise
        raise HTTPProblem(status_of(error), problem.why, names[problem.key]) from error


def unknown_model(name: str) -> Unknown:
    """Return the one error for a model that is not there and for one that may not be asked."""
    return Unknown(f"the model `{name}` does not exist", key="model")


def status_of(error: RequestError) -> int:
    """Return the HTTP status of an error."""
    return error.http if isinstance(error, HTTPProblem) else error.status


def body_of(error: RequestError, path: str = "") -> dict[str, Any]:
    """Return what is told of an error, in the form of the clients of this path."""
    status, problem = status_of(error), error.problems[0]
    message = ". ".join(part for part in (problem.why, problem.fix) if part)
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    if path.startswith(ANTHROPIC):
        kind = "api_error" if kind == "server_error" else kind
        named = not problem.key or message.startswith((f"{problem.key}:", f"`{problem.key}`"))
        message = message if named else f"{problem.key}: {message}"
        return {"type": "error", "error": {"type": kind, "message": message}}
    code = error.code_name if isinstance(error, HTTPProblem) else None
    code = code or ("context_length_exceeded" if isinstance(error, TooLong) else None)
    code = code or {404: "model_not_found", 429: "rate_limit_exceeded"}.get(status)
    return {"error": {"message": message, "type": kind, "param": problem.key or None, "code": code}}


def response(error: RequestError, path: str = "") -> JSONResponse:
    """Return the answer that says what is wrong."""
    headers = dict(error.headers) if isinstance(error, HTTPProblem) else {}
    if isinstance(error, Full):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    return JSONResponse(body_of(error, path), status_of(error), headers)

"""What handlers of requests share: JSON bodies, and errors of Gym as replies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gym_core.errors import GymError
from gym_serve.api.errors import HTTPProblem

Asked = dict[str, Any]


def page(path: str, show: Callable[[Request], Response]) -> Route:
    """Return the route of a page; `show` may wait for the disk."""
    return Route(path, show, methods=["GET"])


def asked(path: str, answer: Callable[[Asked], Any]) -> Route:
    """Return a route that answers JSON; `answer` is given the words of the query. It must change nothing."""

    def got(request: Request) -> Response:
        return JSONResponse(answer(dict(request.query_params)))

    return Route(path, got, methods=["GET"])


def posted(path: str, answer: Callable[[Asked], Any]) -> Route:
    """Return a route that does something; `answer` is given the object that was posted, and returns JSON or a response."""

    async def got(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise HTTPProblem(400, "the body is no JSON object", code="wrong_form")
        found = await run_in_threadpool(answer, body)
        return found if isinstance(found, Response) else JSONResponse(found)

    return Route(path, got, methods=["POST"])


def text_of(body: Asked, key: str, most: int = 2**20) -> str:
    """Return a text of a request. Raises HTTPProblem where it is none."""
    value = body.get(key)
    if not isinstance(value, str) or len(value) > most:
        raise HTTPProblem(400, "expected a text", key, code="wrong_form")
    return value


def problems_of(error: GymError) -> list[dict[str, str]]:
    """Return the problems of an error for a page."""
    return [problem.to_json() for problem in error.problems]

"""The application: which route is answered by what."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, get_type_hints

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from gym_serve.api import (
    adapters,
    anthropic_messages,
    chat_completions,
    completions,
    embeddings,
    errors,
    json_body,
    models,
    responses,
    score,
    tokenization,
)
from gym_serve.api.auth import Access, Tokens
from gym_serve.api.errors import HTTPProblem
from gym_serve.api.fields import problem_of
from gym_serve.api.metrics import Metrics
from gym_serve.api.middleware import ACCESS, Gate
from gym_serve.api.options import ApiOptions
from gym_serve.api.service import Service
from gym_serve.contract import Engine
from gym_serve.errors import RequestError

POSTED: Mapping[str, Callable[..., Any]] = {
    "/v1/chat/completions": chat_completions.chat_completions,
    "/v1/completions": completions.completions,
    "/v1/responses": responses.responses,
    "/v1/responses/input_tokens": responses.input_tokens,
    "/v1/messages": anthropic_messages.messages,
    "/v1/messages/count_tokens": anthropic_messages.count_tokens,
    "/v1/embeddings": embeddings.embeddings,
    "/v1/score": score.score,
    "/v1/score/evaluation": score.score_evaluation,
    "/v1/rerank": score.rerank,
    "/tokenize": tokenization.tokenize,
    "/detokenize": tokenization.detokenize,
}
#: where options name folders of adapters, and a token is needed
MANAGING: Mapping[str, Callable[..., Any]] = {
    "/v1/load_lora_adapter": adapters.load_adapter,
    "/v1/unload_lora_adapter": adapters.unload_adapter,
}
LISTS = ("messages", "tools", "input", "documents", "text_1", "text_2", "prompt")  #: fields of bounded length


def application(engine: Engine, options: ApiOptions, tokens: Tokens | None = None) -> ASGIApp:
    """Return the application that serves an engine; without `tokens` everybody who can connect may ask."""
    app = FastAPI(title="Gym", docs_url=None, redoc_url=None, openapi_url=None)
    posted = {**POSTED, **(MANAGING if options.adapter_folders and tokens is not None else {})}
    known = {"/health", "/metrics", "/v1/models", *posted}
    metrics = Metrics(lambda: known, engine.statistics)
    service = Service(engine, options, metrics)
    app.router.route_class = _route_class(options)
    for path, answer in posted.items():
        _post(app, path, answer, service)

    @app.get("/v1/models")
    async def listed(request: Request) -> dict[str, Any]:
        return models.models(service, access_of(request))

    @app.get("/v1/models/{name:path}")
    async def one(request: Request, name: str) -> dict[str, Any]:
        return models.model(service, name, access_of(request))

    @app.get("/metrics")
    async def figures() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    async def refused(request: Request, error: Exception) -> Response:
        return errors.response(_problem(error), request.url.path)

    for kind in (RequestError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, refused)
    return Gate(app, options, tokens, metrics.request)


def access_of(request: Request) -> Access:
    """Return what the client may use."""
    access: Access = request.scope["state"][ACCESS]
    return access


def _post(app: FastAPI, path: str, answer: Callable[..., Any], service: Service) -> None:
    """Add a route whose function takes the body that its annotation says."""
    body_type = get_type_hints(answer)["body"]

    async def route(request: Request, body: body_type) -> Any:  # type: ignore[valid-type]
        found = await answer(service, body, access_of(request))
        # FastAPI would walk through each number of it in Python, while all streams stand still
        return JSONResponse(found) if isinstance(found, dict) else found

    route.__annotations__ = {"request": Request, "body": body_type, "return": Any}
    app.add_api_route(path, route, methods=["POST"], response_model=None)


def _route_class(options: ApiOptions) -> type[APIRoute]:
    class Strict(Request):
        """A request whose body is read as strict JSON with lists of bounded length."""

        async def json(self) -> Any:
            found = json_body.parse(await self.body())
            for name in LISTS:
                value = found.get(name)
                if isinstance(value, list) and len(value) > options.max_messages and not _numbers(value):
                    why = f"{len(value)} items are more than the {options.max_messages} of one request"
                    raise HTTPProblem(413, why, key=name)
            return found

    class Route(APIRoute):
        """A route that hands such requests over."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()

            async def handle(request: Request) -> Response:
                if request.method == "POST" and not _is_json(request):
                    raise HTTPProblem(415, "send the body as `content-type: application/json`", code="wrong_type")
                return await handler(Strict(request.scope, request.receive))

            return handle

    return Route


def _numbers(found: list[Any]) -> bool:
    """Whether a list holds the tokens of one text, which the context bounds."""
    return all(isinstance(each, int) for each in found)


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json"


def _problem(error: Exception) -> RequestError:
    """Return what a client is told."""
    cause = error.__cause__ if isinstance(error, HTTPException) else None  # what FastAPI calls an unreadable body
    for known in (error, cause):
        if isinstance(known, RequestError):
            return known
    if isinstance(error, RequestValidationError):
        return problem_of(list(error.errors()))
    if isinstance(error, HTTPException):
        why = {404: "there is no such path", 405: "this path takes another method"}.get(
            error.status_code, str(error.detail)
        )
        return HTTPProblem(error.status_code, why, code="not_found" if error.status_code == 404 else None)
    return RequestError("the server failed on this request")

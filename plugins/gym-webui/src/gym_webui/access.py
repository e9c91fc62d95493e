"""What every request passes before a page sees it: the token, the host, the origin, the form of a body; and headers of replies.

The link that is printed holds the token. It becomes a cookie that scripts cannot read and that other sites cannot send.
"""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gym_serve.api import errors
from gym_serve.api.auth import Tokens
from gym_serve.api.errors import HTTPProblem
from gym_serve.api.middleware import Gate
from gym_serve.api.options import ApiOptions

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
CLOSED = "<!doctype html><title>Gym</title><p>This page needs the link that <code>gym webui</code> printed when it was started."
SAFE = ("GET", "HEAD")


class Access:
    """An ASGI application around the pages. `port` tells the cookies of several servers of this machine apart."""

    def __init__(self, app: ASGIApp, options: ApiOptions, token: str, port: int) -> None:
        """Guard the pages."""
        self._gate = Gate(app, options, None, lambda path, status, seconds: None)
        self._entrance = Gate(self._enter, options, None, lambda path, status, seconds: None)
        self._tokens, self._token, self._cookie = Tokens.of(token), token, f"gym-webui-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                said = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *said]
            await send(message)

        known = self._tokens.access("Bearer " + self._given(scope)) is not None
        if not known or b"token=" in scope["query_string"]:
            await self._entrance(scope, receive, told)
            return
        kind = "".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"content-type")
        if scope["method"] not in SAFE and kind.partition(";")[0].strip().lower() != "application/json":
            problem = HTTPProblem(415, "a request that changes something is JSON", code="wrong_form")
            await errors.response(problem)(scope, receive, told)
            return
        await self._gate(scope, receive, told)

    def _given(self, scope: Scope) -> str:
        """Return the token of the cookie or of the header `Authorization`."""
        values = {name: value.decode("latin-1") for name, value in scope["headers"]}
        cookies = cookie_parser(
            values.get(b"cookie", "")
        )  # one that is malformed, of another server here, hides no other
        return cookies.get(self._cookie) or values.get(b"authorization", "").partition(" ")[2]

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Exchange the token of the link for a cookie, on a way where the host has been checked."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        response: Response = HTMLResponse(CLOSED, 401)
        if scope["method"] in SAFE and self._tokens.access("Bearer " + given) is not None:
            response = RedirectResponse("/", 303)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        elif "application/json" in "".join(
            value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"
        ):
            why = "open the link that `gym webui` printed: this page belongs to a server that has ended"
            response = errors.response(HTTPProblem(401, why, code="no_token"))
        await response(scope, receive, send)

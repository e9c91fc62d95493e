"""A server process: sockets, signals, and the token that is shown once."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from gym_core import GymError
from gym_core.files import expanded
from gym_serve.api.app import application
from gym_serve.api.auth import Tokens, read_tokens
from gym_serve.api.connections import guarded
from gym_serve.api.options import ApiOptions
from gym_serve.contract import Engine


class Stoppable(uvicorn.Server):
    """A server that a signal stops once replies under way are finished, without ending the process; a second one ends it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Have SIGINT and SIGTERM stop the server while the block runs."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.handle_exit(signal.SIGINT, frame)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def tokens_of(options: ApiOptions, show: Callable[[str], None]) -> Tokens | None:
    """Return the tokens that open the server; one is made and shown where one is required and none is given."""
    if options.tokens is not None:
        return read_tokens(expanded(options.tokens))
    if options.local and not options.token_required and not options.adapter_folders:
        return None
    token = secrets.token_urlsafe(32)
    show(f"token, shown this once: {token}")
    return Tokens.of(token)


def listening(options: ApiOptions) -> socket.socket:
    """Return the socket of the server. Raises GymError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((options.host, options.port))
        found.listen(512)
        found.setblocking(False)
    except OSError as error:
        found.close()
        why = f"cannot listen there: {error.strerror or error}"
        raise GymError(
            why, where=f"{options.host}:{options.port}", key="port", fix="name another `host` or `port`"
        ) from error
    return found


def settings(app: ASGIApp, options: ApiOptions, seconds: float) -> uvicorn.Config:
    """Return how uvicorn serves an application: nothing is said of requests; those under way get some seconds at the end."""
    return uvicorn.Config(
        app,
        http=guarded(options),
        ws="none",
        lifespan="off",
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, int(seconds)),
    )


def check_tenant(engine: Engine, tenant: str | None) -> None:
    """Raise GymError where the first model has no such tenant, so that its plain name would mean nothing."""
    first = engine.models()[0]
    known = engine.tenants(first.name) if first.tenants else ()
    if tenant is not None and tenant not in known:
        there = (
            f"there are: {', '.join(known[:20])}" if known else "name some with `adapters.NAME=PATH` or `tenants=STORE`"
        )
        raise GymError(f"`{first.name}` has no adapter or variant `{tenant}`", key="tenant", fix=there)


def check_adapters(engine: Engine, folders: Sequence[Path]) -> None:
    """Raise GymError where adapters are to be loaded from folders that are not there, or beside what takes none."""
    if folders and "adapters" not in engine.supports:
        why, fix = (
            "nothing that is served takes adapters later",
            "serve a whole model with `engine=local`, without a store",
        )
        raise GymError(why, key="adapter_folders", fix=fix)
    for folder in folders:
        if not expanded(folder).is_dir():
            raise GymError("there is no such folder", where=str(folder), key="adapter_folders")


def serve(
    engine: Engine, options: ApiOptions, tokens: Tokens | None, server: socket.socket, show: Callable[[str], None]
) -> None:
    """Serve until a signal; replies under way are finished first. `show` gets what the user is told.

    Raises GymError where the options name a tenant that is not there, or tell templates what none reads.
    """
    host, port = server.getsockname()[:2]
    config = settings(application(engine, options, tokens), options, options.shutdown_seconds)
    if options.log_prompts:
        logging.basicConfig(level=logging.INFO)
    names = ", ".join(model.name for model in engine.models())
    shown = f"[{host}]" if ":" in str(host) else host

    async def run() -> None:
        try:
            check_tenant(engine, options.tenant)
            check_adapters(engine, options.adapter_folders)
            options.check(*engine.models())
            show(f"serving {names} on http://{shown}:{port}/v1; Ctrl-C stops it")
            await Stoppable(config).serve(sockets=[server])
        finally:
            await engine.close(options.shutdown_seconds)

    asyncio.run(run())

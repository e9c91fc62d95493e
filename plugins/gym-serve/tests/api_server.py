"""A server in a thread of this process, as tests use it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import uvicorn

from gym_serve.api.app import application
from gym_serve.api.auth import Tokens
from gym_serve.api.connections import guarded
from gym_serve.api.options import ApiOptions
from gym_serve.contract import Engine


@dataclass
class Served:
    """A server that listens."""

    port: int
    engine: Engine
    server: uvicorn.Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def raw(self, sent: bytes) -> bytes:
        """Return all that comes back for some bytes, until the connection is closed or stands still."""
        with self.connect() as connection:
            connection.sendall(sent)
            return received(connection)


def received(connection: socket.socket, timeout: float = 5.0) -> bytes:
    """Return what comes until the other side closes."""
    connection.settimeout(timeout)
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except (TimeoutError, ConnectionError):
        pass
    return b"".join(parts)


def post(url: str, path: str, body: Mapping[str, Any], **headers: str) -> tuple[int, dict[str, Any]]:
    """Return status and body of an answer."""
    asked = Request(f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
    try:
        with urlopen(asked, timeout=60) as got:
            return got.status, json.load(got)
    except HTTPError as error:
        return error.code, json.load(error)


@contextmanager
def served(engine: Engine, tokens: Tokens | None = None, **options: object) -> Iterator[Served]:
    """Serve an engine on a free port while the block runs."""
    chosen = ApiOptions.model_validate(options)
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    config = uvicorn.Config(
        application(engine, chosen, tokens),
        http=guarded(chosen),
        ws="none",
        lifespan="off",
        log_level="critical",
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    try:
        yield Served(listening.getsockname()[1], engine, server)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server does not end"

"""Runs a community server: uvicorn around the application, and a thread that ends rounds."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gym_core import BusyError, GymError
from gym_core.files import expanded
from gym_core.outputlock import OutputLock
from gym_deltasoup.config.server import SoupServerConfig
from gym_deltasoup.rounds.closing import result
from gym_deltasoup.rounds.community import Evaluate
from gym_deltasoup.server.app import SoupApp
from gym_deltasoup.server.service import Service

HEAD_BYTES = 1 << 14  #: of the head of a request
PAUSE = 0.5  #: seconds between looks at the clock


def protocol(seconds: float) -> type[H11Protocol]:
    """Return HTTP/1.1 as uvicorn speaks it, for which the head of a request has to be there within some seconds."""

    class Timed(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watched: asyncio.TimerHandle | None = None
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._watched is not None:
                self._watched.cancel()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Begin to wait for a head where there is none yet, and stop where it is there."""
            waiting = self.conn.their_state is h11.IDLE
            if waiting and self._watched is None:
                self._watched = self.loop.call_later(seconds, self._too_slow)
            elif not waiting and self._watched is not None:
                self._watched.cancel()
                self._watched = None

        def _too_slow(self) -> None:
            if self.conn.their_state is h11.IDLE:
                self.transport.close()

    return Timed


class SoupServer:
    """A server in this process. One process serves a folder."""

    def __init__(
        self, config: SoupServerConfig, evaluate: Evaluate | None = None, say: Callable[[str], None] | None = None
    ) -> None:
        """Open the community and the socket; `say` is told how rounds end. Raises GymError or OSError where that cannot be."""
        token = "" if config.token_file is None else _token(expanded(config.token_file))
        folder = expanded(config.folder).absolute()
        with ExitStack() as held:  # given back where it cannot begin, so that the same process may try again
            try:
                held.enter_context(OutputLock(folder / "server"))
            except BusyError as error:
                fix = "stop that server, or serve another folder"
                raise BusyError(error.problems[0].why, where=str(folder), key="folder", fix=fix) from None
            self.service = Service(config, evaluate)
            held.callback(self.service.close)
            self.app = SoupApp(self.service, config, token)
            self.socket = held.enter_context(_listening(config.host, config.port))
            self.server = uvicorn.Server(_options(self.app, config))
            self._held = held.pop_all()
        self._say, self._trouble = say or (lambda text: None), ""
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._watch, name="rounds", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens at."""
        return int(self.socket.getsockname()[1])

    @property
    def url(self) -> str:
        """The address it listens at."""
        scheme = "http" if self.app.config.certificate is None else "https"
        host = self.app.config.host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def run(self) -> None:
        """Serve until a signal comes, or `stop` is called."""
        self._clock.start()
        try:
            self.server.run(sockets=[self.socket])
        finally:
            self._over.set()
            self._clock.join()
            self._held.close()

    def stop(self) -> None:
        """Ask it to end; requests that are under way are answered."""
        self.server.should_exit = True

    def _watch(self) -> None:
        while not self._over.wait(PAUSE):
            ended = self.service.tick()
            with suppress(OSError):  # where nobody reads along any more rounds end as well
                self._tell(ended)

    def _tell(self, ended: bool) -> None:
        """Say how a round ended, and once why it cannot."""
        trouble, before = self.service.trouble, self._trouble
        number, self._trouble = self.service.community.ledger.round().number, trouble
        if ended:
            report = result(self.service.community, number - 1).report
            self._say(
                f"round {number - 1} ended: {len(report['accepted'])} accepted, {len(report['refused'])} refused, "
                f"published: {report['published']}"
            )
        elif trouble not in ("", before):
            self._say(f"round {number} cannot end: {trouble}")


def _options(app: SoupApp, config: SoupServerConfig) -> uvicorn.Config:
    """Return how uvicorn serves, before anybody is told that it listens. Raises GymError for a certificate that is none."""
    options = uvicorn.Config(
        app.asgi,
        http=protocol(config.limits.header_seconds),
        ws="none",
        loop="asyncio",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        limit_concurrency=config.limits.connections,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=10,
        h11_max_incomplete_event_size=HEAD_BYTES,
        ssl_certfile=config.certificate,
        ssl_keyfile=config.private_key,
    )
    try:
        options.load()
    except OSError as error:
        why = f"the certificate or its key cannot be used: {error.strerror or error}"
        raise GymError(why, where=str(config.certificate), key="certificate", fix="name two files in PEM") from None
    return options


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket, of IPv6 where the address is of that. Raises GymError where it cannot listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        why = f"it cannot listen at {host}, port {port}: {error.strerror}"
        raise GymError(why, key="port", fix="choose another port, or an address of this machine as `host`") from None


def _token(file: Path) -> str:
    try:
        found = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise GymError(f"cannot be read: {error.strerror}", where=str(file), key="token_file") from None
    if len(found) < 16:
        raise GymError("a token has 16 characters at least", where=str(file), key="token_file")
    return found

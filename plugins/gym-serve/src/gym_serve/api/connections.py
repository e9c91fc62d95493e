"""Connections that cost nothing for long: of clients that never finish a head, and of those that take nothing."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gym_serve.api.options import ApiOptions


def guarded(options: ApiOptions) -> type[H11Protocol]:
    """Return uvicorn's HTTP protocol with limits on connections."""

    class Guarded(H11Protocol):
        """Looks at its connection now and then, and breaks one off that stands still."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._pending, self._since = 0, self.loop.time()
            self._sweeper: asyncio.TimerHandle | None = None
            if len(self.connections) > options.max_connections:
                transport.abort()
            else:
                self._sweep()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._sweeper is not None:
                self._sweeper.cancel()
            super().connection_lost(exc)

        def _sweep(self) -> None:
            """Break off where there was no progress for too long; uvicorn sees to connections between two requests."""
            now, pending = self.loop.time(), self.transport.get_write_buffer_size()
            idle = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
            moved = pending != self._pending and not self.flow.write_paused
            if moved or not (idle or pending):
                self._since = now
            self._pending = pending
            if now - self._since > (options.write_seconds if pending else options.header_seconds):
                self.transport.abort()
            else:
                pause = min(1.0, options.write_seconds / 4, options.header_seconds / 4)
                self._sweeper = self.loop.call_later(pause, self._sweep)

    return Guarded

"""SIGTERM, Ctrl-C and a closed terminal as a question the loop asks between batches, so that a run stops where it can resume."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self

HANGUP = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []  #: where a system has it


class Signals:
    """Remembers the first signal that asks the process to stop; a second one acts as it always did.

    But for SIGHUP: when a terminal is closed, the system sends one and the shell another. Under `nohup` it stays ignored.
    """

    def __init__(self) -> None:
        """Start with nothing received."""
        self.received = 0  #: number of the signal, or 0
        self._before: dict[int, signal.Handlers | int | None] = {}

    def __enter__(self) -> Self:
        """Take over the handlers; off the main thread, where Python allows none, do nothing."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, *HANGUP):
                if number in HANGUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._before[number] = signal.signal(number, self._receive)  # type: ignore[assignment]
        return self

    def __exit__(self, *error: object) -> None:
        """Give the handlers back."""
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        if number not in HANGUP:
            self.__exit__()

"""Runs `gym WORDS` as long as its standard input is open, so that it ends with whoever started it, even with a killed one."""

from __future__ import annotations

import os
import signal
import threading

from gym_core.cli import main


def _watch() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    main()

"""The process of a server: a command of `gym` that ends with its input, which is when whoever started it is gone."""

from __future__ import annotations

import os
import signal
import sys
import threading

from gym_core.cli import run


def _watch() -> None:
    """Wait for the end of the input, then stop as Ctrl-C does."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    sys.exit(run(sys.argv[1:]))

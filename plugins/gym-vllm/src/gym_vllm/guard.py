"""Runs a command that must not outlive the process that started this one: `python -m gym_vllm.guard COMMAND...`.

The starter holds the other end of standard input. However it ends, that end closes, and the command and all it started are
ended. Imports nothing but the standard library, because it does nothing but wait.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

PATIENCE = 15.0  #: seconds to end by oneself


def main(command: list[str]) -> None:
    """Run the command in a session of its own, end this process with its exit code, and leave nothing of it behind."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def watch() -> None:
        while os.read(0, 1 << 10):
            pass
        _signal(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        _signal(process.pid, signal.SIGKILL)

    threading.Thread(target=watch).start()
    code = process.wait()
    _signal(process.pid, signal.SIGKILL)  # what it started and did not end
    os._exit(code if code >= 0 else 128 - code)


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    main(sys.argv[1:])

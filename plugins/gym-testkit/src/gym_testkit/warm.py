"""Python in processes forked from one that has imported everything, so that a command of Gym costs a moment and not its imports.

`run("-m", "gym_core.cli", "train", "recipe.yaml")` does what `[sys.executable, *arguments]` does: a process of its own with its
own directory, environment and output, which may be killed. Three things differ: libraries were imported before the environment
was set, with one thread for OpenMP and the Hub off line; what was imported is not imported anew; all processes hash strings
alike. A test that is about one of these starts a real process.

`light=True` forks from a process that has imported the kernel alone, for questions about what an import brings along.

The servers end with the process that started them; processes that this one starts find them by the environment.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from itertools import count
from pathlib import Path

#: The environment variables that hold the paths of the servers' sockets: of that which imports everything, and of the light one.
ADDRESS, LIGHT = "GYM_TESTKIT_WARM", "GYM_TESTKIT_LIGHT"
#: The environment variable that names a worker of pytest-xdist: workers share one server.
WORKER = "PYTEST_XDIST_WORKER"
_fresh = count()


class Process:
    """A process that the server forked; used like `subprocess.Popen`, its output is in files."""

    def __init__(self, connection: socket.socket, arguments: tuple[str, ...], out: Path, err: Path) -> None:
        """Wait for the number of the process."""
        self.args, self.out, self.err = arguments, out, err
        self._connection = connection
        self.pid = self._number()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status if the process has ended; negative for a signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once the process has ended. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0, *self.said())
            self.returncode = self._number()
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return what was written to stdout and to stderr."""
        self.wait(timeout)
        return self.said()

    def said(self) -> tuple[str, str]:
        """Return what has been written so far."""
        return self.out.read_text(errors="replace"), self.err.read_text(errors="replace")

    def _number(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            piece = self._connection.recv(1)
            if not piece:
                raise RuntimeError("the server of warm processes has ended")
            line += piece
        return int(line)


def start(
    *arguments: str, cwd: Path | str | None = None, env: Mapping[str, str] | None = None, light: bool = False
) -> Process:
    """Start `python *arguments`, which begin with `-m` and a module or with `-c` and code, with nothing on its stdin."""
    server = address(LIGHT if light else ADDRESS)
    folder = Path(server).parent
    name = f"{os.getpid()}-{next(_fresh)}"
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    out.touch()
    err.touch()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(server)
    servers = {name: os.environ[name] for name in (ADDRESS, LIGHT) if name in os.environ}
    request = {
        "arguments": arguments,
        "cwd": str(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env) | servers,
        "output": [str(out), str(err)],
    }
    connection.sendall(json.dumps(request).encode() + b"\n")
    return Process(connection, arguments, out, err)


def run(
    *arguments: str,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    light: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `python *arguments` to its end. Raises `subprocess.TimeoutExpired` after killing it."""
    process = start(*arguments, cwd=cwd, env=env, light=light)
    try:
        process.wait(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess([sys.executable, *arguments], process.wait(), *process.said())


def cpu_seconds() -> float:
    """Return the CPU seconds of the processes that this worker of pytest-xdist, or a process without workers, had forked.

    Those that have ended count. A process without workers is told those of the servers too; 0 where none was started.
    """
    found = 0.0
    for server in (os.environ[name] for name in (ADDRESS, LIGHT) if name in os.environ):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(server)
            connection.sendall(json.dumps({"seconds": os.environ.get(WORKER, "")}).encode() + b"\n")
            found += float(connection.makefile().readline())
    return found


def address(name: str = ADDRESS) -> str:
    """Return where a server listens, which imports what it is to import when it is first asked for a process."""
    if name not in os.environ:
        os.environ[name] = _begin(name)
    return os.environ[name]


@cache
def _begin(name: str) -> str:
    """Start a server and return its address. It listens already, so that nobody waits for its imports twice."""
    folder = tempfile.TemporaryDirectory(prefix="gym-warm-")
    path = f"{folder.name}/socket"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    server = subprocess.Popen(
        [sys.executable, "-m", "gym_testkit.warm_server", str(listener.fileno()), name],
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    listener.close()

    def end() -> None:
        os.environ.pop(name, None)
        server.communicate()
        folder.cleanup()

    atexit.register(end)
    return path

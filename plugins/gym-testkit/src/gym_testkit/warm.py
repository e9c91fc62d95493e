"""Python in processes forked from one that has imported everything, so that a command of Gym costs a moment and not its imports.

`run("-m", "gym_core.cli", "train", "recipe.yaml")` does what `[sys.executable, *arguments]` does: a process of its own with its
own directory, environment and output, which may be killed. Three things differ: libraries were imported before the environment
was set, with one thread for OpenMP and the Hub off line; what was imported is not imported anew; all processes hash strings
alike. A test that is about one of these starts a real process.

The server ends with the process that started it; processes that this one starts find it by the environment.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distributions
from itertools import count
from pathlib import Path
from typing import Any

#: The environment variable that holds the path of the server's socket.
ADDRESS = "GYM_TESTKIT_WARM"
#: What a run imports late, beside the modules of components.
LATE = (
    "gym_core.cli.recipes",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "pyarrow.parquet",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "transformers.conversion_mapping",
    "transformers.integrations.flash_attention",
    "transformers.models.qwen3.modeling_qwen3",
)
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


def start(*arguments: str, cwd: Path | str | None = None, env: Mapping[str, str] | None = None) -> Process:
    """Start `python *arguments`, which begin with `-m` and a module or with `-c` and code, with nothing on its stdin."""
    address = _address()
    folder = Path(address).parent
    name = f"{os.getpid()}-{next(_fresh)}"
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    out.touch()
    err.touch()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    request = {
        "arguments": arguments,
        "cwd": str(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env) | {ADDRESS: address},
        "output": [str(out), str(err)],
    }
    connection.sendall(json.dumps(request).encode() + b"\n")
    return Process(connection, arguments, out, err)


def run(
    *arguments: str, cwd: Path | str | None = None, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run `python *arguments` to its end. Raises `subprocess.TimeoutExpired` after killing it."""
    process = start(*arguments, cwd=cwd, env=env)
    try:
        process.wait(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess([sys.executable, *arguments], process.wait(), *process.said())


def cpu_seconds() -> float:
    """Return the CPU seconds of the server and of its processes that have ended; 0 where none was started."""
    if ADDRESS not in os.environ:
        return 0.0
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        connection.sendall(b"{}\n")
        return float(connection.makefile().readline())


def _address() -> str:
    if ADDRESS not in os.environ:
        os.environ[ADDRESS] = _begin()
    return os.environ[ADDRESS]


@cache
def _begin() -> str:
    """Start the server and return its address. It listens already, so that nobody waits for its imports twice."""
    folder = tempfile.TemporaryDirectory(prefix="gym-warm-")
    address = f"{folder.name}/socket"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    server = subprocess.Popen(
        [sys.executable, "-m", "gym_testkit.warm", str(listener.fileno())],
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    listener.close()

    def end() -> None:
        os.environ.pop(ADDRESS, None)
        server.communicate()
        folder.cleanup()

    atexit.register(end)
    return address


def preload() -> None:
    """Import the modules of all installed components, as far as that works here."""
    names = [*LATE]
    for entry in (entry for dist in distributions() for entry in dist.entry_points):
        if entry.group.startswith("gym."):
            with contextlib.suppress(Exception):
                target = getattr(entry.load(), "target", None)
                names += [str(target).partition(":")[0]] if target else []
    for name in sorted(names):
        with contextlib.suppress(Exception):
            importlib.import_module(name)


class Server:
    """Forks a process for each request, until its own stdin ends."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.asked: dict[socket.socket, bytes] = {}
        self.running: dict[int, socket.socket] = {}

    def serve(self) -> dict[str, Any] | None:
        """Return the request, in a process that was forked for it; None at the end."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        while True:
            watched: list[Any] = [0, woken, self.listener, *self.asked, *self.running.values()]
            ready, _, _ = select.select(watched, [], [])
            if 0 in ready:
                for pid in self.running:
                    os.kill(pid, signal.SIGKILL)
                return None
            if woken in ready:
                os.read(woken, 4096)
                self._reap()
            if self.listener in ready:
                self.asked[self.listener.accept()[0]] = b""
            for pid in [pid for pid, connection in self.running.items() if connection in ready]:
                os.kill(pid, signal.SIGKILL)  # nobody waits for it any more
                self.running.pop(pid).close()
            for connection in [connection for connection in self.asked if connection in ready]:
                request = self._read(connection)
                if request is not None and self._answer(connection, request):
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for each in (self.listener, connection, *self.asked, *self.running.values()):
                        each.close()
                    os.close(woken)
                    os.close(wake)
                    return request

    def _read(self, connection: socket.socket) -> dict[str, Any] | None:
        piece = connection.recv(65536)
        self.asked[connection] += piece
        if piece and not piece.endswith(b"\n"):
            return None
        text = self.asked.pop(connection)
        return json.loads(text) if text else None

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> bool:
        """Fork; return whether this is the new process."""
        if not request:
            with connection:
                connection.sendall(f"{sum(os.times()[:4])}\n".encode())
            return False
        pid = os.fork()
        if pid == 0:
            return True
        self.running[pid] = connection
        self._tell(connection, pid)
        return False

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            connection = self.running.pop(pid, None)
            if connection is not None:
                with connection:
                    self._tell(connection, os.waitstatus_to_exitcode(status))

    def _tell(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(f"{number}\n".encode())


def _become(request: dict[str, Any]) -> None:
    """Do in this process what was asked for."""
    for number, path in enumerate([os.devnull, *request["output"]]):
        file = os.open(path, os.O_WRONLY if number else os.O_RDONLY)
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    path = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.path[:1] = [request["cwd"], *path]
    importlib.invalidate_caches()
    option, what, *arguments = request["arguments"]
    sys.argv = [option, *arguments]
    if option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(what, "<string>", "exec"), vars(main))  # noqa: S102 - this is what `python -c` is


def main() -> None:
    """Serve; in a forked process, become what was asked for."""
    status, leave = 1, os._exit

    def end() -> None:
        """End without taking apart what was imported, which would take longer than most commands."""
        sys.stdout.flush()
        sys.stderr.flush()
        leave(status)

    atexit.register(end)  # the first one is called last
    preload()
    gc.freeze()  # what is shared stays shared
    request = Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    try:
        if request is not None:
            _become(request)
        status = 0
    except SystemExit as asked:
        status = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
        raise


if __name__ == "__main__":
    main()

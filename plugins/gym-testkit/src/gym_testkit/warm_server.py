"""The server of `gym_testkit.warm`: it imports everything once, and forks a process for each request."""

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
import sys
import tempfile
import types
from collections import defaultdict
from importlib.metadata import distributions
from typing import Any

from gym_testkit.warm import LIGHT, WORKER

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


def preload(light: bool) -> None:
    """Import the modules of all installed components, as far as that works here; a light one only the command line."""
    names = ["gym_core.cli"] if light else [*LATE]
    for entry in () if light else (entry for dist in distributions() for entry in dist.entry_points):
        if entry.group.startswith("gym."):
            with contextlib.suppress(Exception):
                target = getattr(entry.load(), "target", None)
                names += [str(target).partition(":")[0]] if target else []
    for name in sorted(names):
        with contextlib.suppress(Exception):
            importlib.import_module(name)


class Server:
    """Forks a process for each request, until its own stdin ends."""

    def __init__(self, listener: socket.socket, light: bool) -> None:
        self.listener, self.light = listener, light
        self.asked: dict[socket.socket, bytes] = {}
        self.running: dict[int, socket.socket] = {}
        self.by: dict[int, str] = {}  #: whose each process is
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.prepared = False

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

    def _prepare(self) -> None:
        """Import everything before the first fork: a server that nobody asks costs next to nothing."""
        if not self.prepared:
            gc.disable()  # nothing of a million objects is garbage yet
            preload(self.light)
            gc.freeze()  # what is shared stays shared
            gc.enable()
            self.prepared = True

    def _read(self, connection: socket.socket) -> dict[str, Any] | None:
        piece = connection.recv(65536)
        self.asked[connection] += piece
        if piece and not piece.endswith(b"\n"):
            return None
        text = self.asked.pop(connection)
        return json.loads(text) if text else None

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> bool:
        """Fork; return whether this is the new process."""
        if "seconds" in request:
            worker = request["seconds"]
            with connection:
                connection.sendall(f"{self.seconds[worker] if worker else sum(os.times()[:4])}\n".encode())
            return False
        self._prepare()
        pid = os.fork()
        if pid == 0:
            return True
        self.running[pid] = connection
        self.by[pid] = request["env"].get(WORKER, "")
        self._tell(connection, pid)
        return False

    def _reap(self) -> None:
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.seconds[self.by.pop(pid, "")] += used.ru_utime + used.ru_stime
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
    request = Server(socket.socket(fileno=int(sys.argv[1])), light=sys.argv[2] == LIGHT).serve()
    try:
        if request is not None:
            _become(request)
        status = 0
    except SystemExit as asked:
        status = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
        raise


if __name__ == "__main__":
    main()

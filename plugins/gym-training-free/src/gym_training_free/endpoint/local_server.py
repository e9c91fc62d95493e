"""A server of gym-serve for one model of this machine: on loopback, with a token of its own, ended with whoever asked for it."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gym_core.errors import GymError
from gym_core.files import expanded
from gym_core.loading import find
from gym_training_free.endpoint.folder_fingerprint import fingerprint

_log = logging.getLogger(__name__)
NAME = "model"  #: what the server calls it
MOST = 1024  #: requests at a time: as many as a backend may send
PATIENCE = 20.0  #: seconds in which it ends by itself, once it is told to
_ADDRESS = re.compile(r" on (http://[\w.:\[\]]+/v1)\b")


class LocalServer:
    """`gym api` as a process, started when somebody first asks for its address. Threads share it."""

    def __init__(self, model: Path, timeout: float) -> None:
        """Take a folder with a model, and the seconds of a request. Raises GymError where gym-serve is not installed."""
        self.check(model)
        self.model, self.timeout, self.token = expanded(model).resolve(), timeout, secrets.token_urlsafe(32)
        self._url, self._lock = "", threading.Lock()
        self._failed: GymError | None = None
        self._process: subprocess.Popen[str] | None = None
        self._end: Callable[[], object] = lambda: None

    @staticmethod
    def check(model: Path) -> None:
        """Raise GymError where gym-serve is not installed."""
        try:
            find("commands", "api")
        except GymError:
            fix = "pip install gym-serve, or name the address of a server (`base_url`)"
            raise GymError(f"`{model}` is a folder, and nothing here serves it", key="model", fix=fix) from None

    @property
    def where(self) -> str:
        """Name of the folder and of what it holds: the same for the same weights, whatever the port."""
        return f"gym-serve:{self.model}#{fingerprint(self.model)}"

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def url(self) -> str:
        """Return the address; start the server where nobody did. Raises GymError where it cannot, or has ended by itself."""
        with self._lock:
            if self._url and self._process is not None and not self.running:
                fix = "see whether there is memory for it; a run that has an `output` goes on where it stopped"
                raise GymError(
                    f"gym-serve ended with code {self._process.returncode}", where=str(self.model), key="model", fix=fix
                )
            if self._failed is not None:  # threads that waited for it do not try again, each on its own
                raise self._failed
            if not self._url:
                try:
                    self._url = self._start()
                except GymError as error:
                    self._failed = error
                    raise
            return self._url

    def close(self) -> None:
        """End the server; whoever asks again has another one started."""
        with self._lock:
            self._end()
            self._url, self._failed = "", None

    def _start(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            tokens = Path(folder, "tokens.yaml")
            hashed = hashlib.sha256(self.token.encode()).hexdigest()
            tokens.write_text(f'tokens: [{{sha256: "{hashed}", models: [{NAME}]}}]\n', encoding="utf-8")
            options = {"port": 0, "tokens": tokens, "max_concurrent": MOST, "max_connections": 2 * MOST, "queue": MOST}
            words = [f"{key}={value}" for key, value in (options | {"request_seconds": self.timeout}).items()]
            command = [
                sys.executable,
                "-m",
                "gym_core.cli.exit_with_parent",
                "api",
                f"{NAME}={self.model}",
            ]
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                [*command, *words], stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, text=True, errors="replace"
            )
            self._process, self._end = process, weakref.finalize(self, _ended, process)
            said: deque[str] = deque(maxlen=20)
            for line in process.stderr or ():
                if found := _ADDRESS.search(line):
                    threading.Thread(target=_drained, args=(process,), daemon=True).start()
                    return found[1]
                said.append(line.strip())
            self._end()
        lines = list(said)
        begin = next((n for n, line in enumerate(lines) if line.startswith("error")), max(0, len(lines) - 1))
        why = " ".join(lines[begin:]) or "it ended at once"
        raise GymError(
            f"gym-serve could not serve it: {why[:600]}", where=str(self.model), key="model", fix="see `gym api`"
        )


def _drained(process: subprocess.Popen[str]) -> None:
    """Read what a server goes on saying, so that its pipe is never full."""
    for line in process.stderr or ():
        _log.debug("gym-serve: %s", line.rstrip())


def _ended(process: subprocess.Popen[str]) -> None:
    """End a server: its input is closed, which it takes as an order."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

"""Models that the page chats with: each is `gym api` in a process of its own, on a free port, with a token of this server."""

from __future__ import annotations

import hashlib
import re
import secrets
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from starlette.concurrency import run_in_threadpool

from gym_core.errors import printable
from gym_serve.api.errors import HTTPProblem
from gym_webui.background_jobs import tail
from gym_webui.site import Site
from gym_webui.subcommands import words

MOST = 2  #: models that are open; one more closes the one that was opened first
ADDRESS = re.compile(r"serving (\S+) on (http://127\.0\.0\.1:\d+)/v1;")  #: name of the model, and where it is


@dataclass
class Opened:
    """A model that is open or being opened."""

    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]
    token: str

    def state(self) -> dict[str, Any]:
        """Return whether it is `opening`, `ready` or `failed`, and what it said where it failed."""
        said = tail(Path(self.folder.name) / "log")
        if self.process.poll() is not None:
            return {"state": "failed", "said": printable(said[-3000:].strip(), 3000, keep="\n")}
        return {"state": "ready" if ADDRESS.search(said) else "opening", "said": ""}

    def address(self) -> tuple[str, str]:
        """Return its name there, and where it answers. Raises HTTPProblem where it does not yet, or no more."""
        found = ADDRESS.search(tail(Path(self.folder.name) / "log"))
        if found is None or self.process.poll() is not None:
            raise HTTPProblem(409, "the model is not open", "model", code="not_open")
        return found[1], found[2]

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.folder.cleanup()


class Models:
    """The models that are open, the oldest first."""

    def __init__(self, site: Site) -> None:
        """Open none."""
        self._site, self._opened, self._lock = site, dict[str, Opened](), threading.Lock()
        self._pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(connect=5, read=600))

    def open(self, name: str) -> None:
        """Begin to open a model, unless it is open."""
        with self._lock:
            found = self._opened.get(name)
            if found is not None and found.process.poll() is None:
                return
            if found is not None:
                self._opened.pop(name).close()
            while len(self._opened) >= MOST:
                self._opened.pop(next(iter(self._opened))).close()
            self._opened[name] = self._start(name)

    def _start(self, name: str) -> Opened:
        folder, token = tempfile.TemporaryDirectory(prefix="gym-webui-"), secrets.token_urlsafe(32)
        known, hashed = Path(folder.name) / "tokens.yaml", hashlib.sha256(token.encode()).hexdigest()
        known.write_text(f'tokens:\n- {{sha256: "{hashed}", models: ["*"]}}\n', encoding="utf-8")
        place = (
            self._site.folder / name
        )  # named there by a word of ours: `=` and blanks of a path are nothing else then
        model = f"chat={place}" if place.exists() else name
        command = words("gym_core.cli.exit_with_parent", "api", model, "--port", "0", "--tokens", str(known))
        with (Path(folder.name) / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self._site.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Opened(process, folder, token)

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the state of each by name."""
        with self._lock:
            return {name: opened.state() for name, opened in self._opened.items()}

    def ask(self, name: str, body: dict[str, Any]) -> urllib3.BaseHTTPResponse:
        """Return the beginning of a streamed reply. Raises HTTPProblem where the model refuses or is not open."""
        with self._lock:
            opened = self._opened.get(name)
        if opened is None:
            raise HTTPProblem(409, "the model is not open", "model", code="not_open")
        headers = {"authorization": f"Bearer {opened.token}"}
        there, url = opened.address()
        asked = {**body, "model": there, "stream": True}
        try:
            found = self._pool.request(
                "POST", f"{url}/v1/chat/completions", json=asked, headers=headers, preload_content=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise HTTPProblem(503, f"the model does not answer: {type(error).__name__}", "model") from None
        if found.status != 200:
            try:
                why = str(found.json()["error"]["message"])
            except (ValueError, LookupError, TypeError):
                why = f"status {found.status}"
            raise HTTPProblem(400, why[:2000], code="refused")
        return found

    def close(self, name: str | None = None) -> None:
        """End one model, or all."""
        with self._lock:
            for each in [name] if name is not None else [*self._opened]:
                if each in self._opened:
                    self._opened.pop(each).close()


async def pieces(reply: urllib3.BaseHTTPResponse) -> AsyncIterator[bytes]:
    """Yield a reply as it comes; where the reader leaves, the model is told and stops."""
    try:
        while piece := await run_in_threadpool(reply.read1, 2**16):
            yield piece
    except (urllib3.exceptions.HTTPError, OSError):
        yield b'data: {"error": {"message": "the model broke off"}}\n\n'
    finally:
        with suppress(OSError):
            reply.close()

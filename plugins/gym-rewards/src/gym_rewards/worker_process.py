"""A process of its own for code that may hang: called like a function, killed when it does not return.

A thread would not do: a pattern that backtracks forever, or a loop in C, holds the interpreter of the process it is in. What
goes in and out is JSON, a line each way. Nothing here knows about rewards.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gym_core.component import load_object
from gym_core.errors import GymError

_CHUNK = 1 << 16
_STARTING = 120.0  #: seconds to import what is called
_SPARE = 10.0  #: seconds after which a process ends itself whose parent did not


class Raised(Exception):
    """What was called raised; the text begins with the type of the exception."""


class TookTooLongError(TimeoutError):
    """A call did not return in the time that it was given."""


class Worker:
    """Calls `module:function` in another process. For one caller at a time; others wait."""

    def __init__(self, function: str, timeout: float, first: Sequence[Any] = ()) -> None:
        """Take what to call, and the seconds that a call may take; the process starts with the first call, or with `open`.

        With `first`, arguments of a call that every new process begins with, which may take as long as importing.
        """
        self.function, self.timeout, self.first = function, timeout, first
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        """Call and return what it returns, as JSON holds it.

        Raises Raised for its exceptions, TookTooLongError when it does not return in time, GymError when its process ends.
        """
        message = json.dumps([self.timeout, list(arguments)])
        with self._lock:
            process = self.process or self._start()[0]
            try:
                said, content = self._ask(process, message, self.timeout)
            except BaseException:
                self._kill()
                raise
        if said == "raised":
            raise Raised(content)
        return content

    def open(self) -> Any:
        """Start the process and return what the first call returned. Raises as a call does."""
        with self._lock:
            self._kill()
            return self._start()[1]

    def close(self) -> None:
        """End the process; the next call starts another."""
        with self._lock:
            self._kill()

    def _start(self) -> tuple[subprocess.Popen[bytes], Any]:
        """Return a new process, which has imported what is called, and what the first call returned."""
        self.process = process = subprocess.Popen(
            [sys.executable, "-c", "from gym_rewards.worker_process import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)},
            start_new_session=True,
        )
        try:
            said, content = self._ask(process, json.dumps([_STARTING, self.function]), _STARTING)
            if said != "raised" and self.first:
                said, content = self._ask(process, json.dumps([_STARTING, list(self.first)]), _STARTING)
        except BaseException:
            self._kill()
            raise
        if said == "raised":
            self._kill()
            raise Raised(content)
        return process, content

    def _ask(self, process: subprocess.Popen[bytes], message: str, seconds: float) -> list[Any]:
        """Send a line and return the line that answers it."""
        assert process.stdin and process.stdout
        deadline, received = time.monotonic() + seconds, bytearray()
        sender = threading.Thread(target=_write, args=(process, message.encode() + b"\n"), daemon=True)
        sender.start()  # a pipe holds 64 KiB: a process that does not read must not stop the one that writes
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise TookTooLongError(f"{self.function} did not return within {seconds:g} s")
                chunk = os.read(process.stdout.fileno(), _CHUNK)
                if not chunk:
                    raise GymError(
                        f"{self.function} ended its process (exit status {process.wait()})",
                        fix="look above for what it printed",
                    )
                received += chunk
        answer: list[Any] = json.loads(received)
        return answer

    def _kill(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        with suppress(ProcessLookupError):  # it ended by itself, and all that it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream
            with suppress(BrokenPipeError):  # what was not sent has nobody to read it
                stream.close()


def _write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin
    try:
        process.stdin.write(data)
        process.stdin.flush()
    except (BrokenPipeError, ValueError):
        pass  # the reader sees the end of the process and says so


def serve() -> None:
    """Answer calls until the caller closes the channel; the body of the process."""
    reader, writer = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what is printed is for people
    function: Any = None
    own = os.getpid()
    for line in reader:
        seconds, content = json.loads(line)
        # Nobody may be left to kill this process: then the alarm, which no running code can hold up, ends it.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds + _SPARE)
        try:
            if function is None:
                function, result = load_object(content), None
            else:
                result = function(*content)
            answer = json.dumps(["returned", result])
        except GymError as error:
            problem = error.problems[0]
            answer = json.dumps(["raised", f"{problem.why}\n-> {problem.fix}" if problem.fix else problem.why])
        except Exception as error:  # the border to code of users
            answer = json.dumps(["raised", f"{type(error).__name__}: {error}"[:2000]])
        if os.getpid() != own:  # a child of what was called came back here: the answer is for its parent to give
            os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            writer.write(answer + "\n")
            writer.flush()
        except BrokenPipeError:  # the caller was killed
            os._exit(0)

"""A process of its own in which chat templates run: it can be killed, and has little memory.

Jinja's sandbox keeps templates from Python, not from time and memory: a single filter can take minutes or gigabytes. So a
rendering that lasts longer than `render.SECONDS` ends the process, and its memory is limited by the operating system (where
that knows such limits: Linux, macOS in part). One serves all tokenizers of a process; more are started where many rows are
rendered at the same time. It is asked in batches, by lines of JSON: a header, then a conversation each; it answers with a
line for each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from typing import IO, Any

from gym_data import render
from gym_data.chats import Asked, Chats, Found, Words
from gym_data.masks import Rendered

try:
    import resource
except ImportError:  # an operating system without such limits
    resource = None  # type: ignore[assignment]

MEMORY = 2 << 30  #: bytes of address space that the process may have; it needs 50 million of them itself
ALARMED = None if resource is None else -signal.SIGALRM  #: exit code after the alarm
COMMAND = (sys.executable, "-P", "-m", "gym_data.worker")


class Worker:
    """The process, as others see it. It starts when it is needed, and again when a template has ended it."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._told: set[str] = set()  #: tokenizers that it knows
        self._lock = Lock()

    def control(self, words: Words) -> list[str]:
        """Return the added tokens that the templates write. Raises ValueError for templates that cannot be read."""
        answer = self._answers(words, "control", [{}])[0]
        if "error" in answer:
            raise ValueError(answer["error"])
        return list(answer["control"])

    def chat(self, words: Words, asked: Asked) -> Found:
        """Return what `Chats.chat` does, and raise what it raises."""
        found = _found(self._answers(words, "chat", [vars(asked)])[0])
        if isinstance(found, ValueError):
            raise found
        return found

    def learnable(self, words: Words, asked: Sequence[Asked]) -> list[Found | ValueError]:
        """Return what `Chats.learnable` returns or raises for each of these."""
        return [_found(answer) for answer in self._answers(words, "learnable", [vars(each) for each in asked])]

    def end(self) -> None:
        """End the process; it starts again when it is needed."""
        if self._process is not None and self._owner == os.getpid():
            self._ended()

    def _answers(self, words: Words, task: str, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        lines = [json.dumps(job, default=_plain) for job in jobs]
        answers: list[dict[str, Any]] = []
        careful, failed = len(lines) == 1, -1
        with self._lock:
            while len(answers) < len(lines):
                answers += self._ask(words, task, lines[len(answers) :], careful)
                if len(answers) < len(lines):
                    code = self._ended()
                    # Answers that it had not sent are lost. A careful process sends each at once, which tells what ended it;
                    # other ends than by its own alarm may come from outside, and are given a second chance.
                    if careful and (code == ALARMED or failed == len(answers)):
                        answers.append({"error": _why(code)})
                    careful, failed = True, len(answers)
        return answers

    def _ask(self, words: Words, task: str, lines: Sequence[str], careful: bool) -> Iterator[dict[str, Any]]:
        """Yield the answers to these lines, fewer where the process ends; a careful process sends each at once."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        header = {"task": task, "jobs": len(lines), "careful": careful, "of": words.key, "seconds": render.SECONDS}
        if words.key not in self._told:
            header["words"] = words.data
            self._told.add(words.key)
        sent = [json.dumps(header, default=str), *lines]
        sender = Thread(target=_send, args=(process.stdin, sent), daemon=True)
        if len(lines) > 1:  # it answers while it still reads, and would wait for ever for somebody to take the answers
            sender.start()
        else:
            _send(process.stdin, sent)
        for _, answer in zip(lines, process.stdout, strict=False):
            if not answer.endswith(b"\n"):
                break
            yield json.loads(answer)
        if len(lines) > 1:
            sender.join()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self._process = subprocess.Popen(
                COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._owner, self._told = os.getpid(), set()
        return self._process

    def _ended(self) -> int:
        """Return how the process ended, and let it go."""
        process, self._process = self._process, None
        assert process is not None
        process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was not sent yet
                pipe.close()
        return code


class Workers:
    """As many such processes as are asked at the same time; which of them answers makes no difference."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._idle: list[Worker] = []

    def control(self, words: Words) -> list[str]:
        """Return what `Worker.control` does."""
        with self._one() as worker:
            return worker.control(words)

    def chat(self, words: Words, asked: Asked) -> Found:
        """Return what `Worker.chat` does."""
        with self._one() as worker:
            return worker.chat(words, asked)

    def learnable(self, words: Words, asked: Sequence[Asked]) -> list[Found | ValueError]:
        """Return what `Worker.learnable` does."""
        with self._one() as worker:
            return worker.learnable(words, asked)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Leave one process alone running at the end."""
        try:
            yield
        finally:
            for worker in self._idle[1:]:
                worker.end()
            del self._idle[1:]

    @contextmanager
    def _one(self) -> Iterator[Worker]:
        try:
            worker = self._idle.pop()  # the one that worked last, so that no more are started than are needed
        except IndexError:
            worker = Worker()
        try:
            yield worker
        finally:
            self._idle.append(worker)


WORKERS = Workers()


def _send(pipe: IO[bytes], lines: Sequence[str]) -> None:
    try:
        for line in lines:
            pipe.write(line.encode("ascii") + b"\n")
        pipe.flush()
    except OSError:  # the process has ended, which whoever reads the answers sees as well
        return


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, set | frozenset | tuple) else str(value)


def _found(answer: Mapping[str, Any]) -> Found | ValueError:
    if "error" in answer:
        return ValueError(answer["error"])
    sequences = [
        Rendered(text, tuple((start, end) for start, end in spans), last) for text, spans, last in answer["sequences"]
    ]
    return Found(sequences, answer["lost"])


def _why(code: int) -> str:
    if code == ALARMED:
        return f"the chat template did not end within {render.SECONDS:g} s"
    return f"the chat template ended the process that renders it (exit code {code})"


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until nobody asks any more."""
    known: dict[str, Chats] = {}
    for line in requests:
        header = json.loads(line)
        render.SECONDS = header["seconds"]
        if "words" in header:
            known[header["of"]] = Chats(Words(**header["words"]))
        for _ in range(header["jobs"]):
            answer = _answer(TASKS[header["task"]], known[header["of"]], json.loads(requests.readline()))
            answers.write(json.dumps(answer).encode("ascii") + b"\n")
            if header["careful"]:
                answers.flush()
        answers.flush()


def _answer(
    task: Callable[[Chats, dict[str, Any]], dict[str, Any]], chats: Chats, job: dict[str, Any]
) -> dict[str, Any]:
    try:
        return task(chats, job)
    except MemoryError:
        return {"error": f"the chat template takes more than {MEMORY >> 30} GiB of memory"}
    except ValueError as error:
        return {"error": str(error)}


def _as_data(found: Found) -> dict[str, Any]:
    return {"sequences": [[each.text, each.spans, each.last] for each in found.sequences], "lost": list(found.lost)}


TASKS: dict[str, Callable[[Chats, dict[str, Any]], dict[str, Any]]] = {
    "control": lambda chats, job: {"control": chats.control},
    "chat": lambda chats, job: _as_data(chats.chat(Asked(**job))),
    "learnable": lambda chats, job: _as_data(chats.learnable(Asked(**job))),
}


def main() -> None:
    """Serve standard input within limits; whoever interrupts the terminal means the process that asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if resource is not None:
        render.ALARM = True
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        allowed = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()

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
from concurrent.futures import CancelledError
from contextlib import suppress
from threading import Lock, Thread
from typing import IO, Any

from gym_core import GymError
from gym_data.chat import render
from gym_data.chat.chat_rendering import ChatRenderer, ChatTemplateSpec, RenderRequest, RenderResult
from gym_data.chat.loss_masks import Rendered

try:
    import resource
except ImportError:  # an operating system without such limits
    resource = None  # type: ignore[assignment]

MEMORY = 2 << 30  #: bytes of address space that the process may have; it needs 50 million of them itself
ALARMED = None if resource is None else -signal.SIGALRM  #: exit code after the alarm
NOT_TRIED = {"error": "a conversation before it was refused"}
READY = b"ready\n"  #: what the process says first
COMMAND = (sys.executable, "-P", "-m", "gym_data.chat.template_worker")


class Worker:
    """The process, as others see it. It starts when it is needed, and again when a template has ended it."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self.process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._told: set[str] = set()  #: tokenizers that it knows
        self._lock = Lock()
        self._stopped = False

    def control(self, spec: ChatTemplateSpec) -> list[str]:
        """Return the added tokens that the templates write. Raises ValueError for templates that cannot be read."""
        return self._names(spec, "control")

    def reads(self, spec: ChatTemplateSpec) -> list[str]:
        """Return what `ChatRenderer.reads` is. Raises ValueError for templates that cannot be read."""
        return self._names(spec, "reads")

    def chat(self, spec: ChatTemplateSpec, request: RenderRequest) -> RenderResult:
        """Return what `ChatRenderer.chat` does, and raise what it raises."""
        found = _found(self._answers(spec, "chat", [vars(request)])[0])
        if isinstance(found, ValueError):
            raise found
        return found

    def learnable(
        self, spec: ChatTemplateSpec, requests: Sequence[RenderRequest], to_first: bool = False
    ) -> list[RenderResult | ValueError]:
        """Return what `ChatRenderer.learnable` returns or raises for each; with `to_first` none is tried after one that
        raises.
        """
        answers = self._answers(spec, "learnable", [vars(each) for each in requests], to_first)
        return [_found(answer) for answer in answers]

    def end(self) -> None:
        """End the process; it starts again when it is needed."""
        if self.process is not None and self._owner == os.getpid():
            self._ended()

    def stop(self) -> None:
        """End the process for good; whoever waits for answers in another thread gets CancelledError."""
        self._stopped = True
        if (process := self.process) is not None and self._owner == os.getpid():
            process.kill()

    def _names(self, spec: ChatTemplateSpec, task: str) -> list[str]:
        answer = self._answers(spec, task, [{}])[0]
        if "error" in answer:
            raise ValueError(answer["error"])
        return list(answer["names"])

    def _answers(
        self, spec: ChatTemplateSpec, task: str, jobs: Sequence[Mapping[str, Any]], to_first: bool = False
    ) -> list[dict[str, Any]]:
        lines = [json.dumps(job, default=_plain) for job in jobs]
        with self._lock:
            try:
                return self._all(spec, task, lines, to_first)
            except BaseException:  # answers that nobody took would be taken for those to the next question
                self.end()
                raise

    def _all(self, spec: ChatTemplateSpec, task: str, lines: Sequence[str], to_first: bool) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        careful, failed = len(lines) == 1, -1
        while len(answers) < len(lines):
            answers += self._ask(spec, task, lines[len(answers) :], careful, to_first)
            if self._stopped:
                raise CancelledError
            if len(answers) < len(lines):
                code = self._ended()
                # Answers that it had not sent are lost. A careful process sends each at once, which tells what ended it;
                # other ends than by its own alarm may come from outside, and are given a second chance.
                if careful and (code == ALARMED or failed == len(answers)):
                    answers.append({"error": _why(code)})
                    answers += [NOT_TRIED] * (len(lines) - len(answers)) if to_first else []
                careful, failed = True, len(answers)
        return answers

    def _ask(
        self, spec: ChatTemplateSpec, task: str, lines: Sequence[str], careful: bool, to_first: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the answers to these lines, fewer where the process ends; a careful process sends each at once."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        header = {"task": task, "jobs": len(lines), "careful": careful, "to_first": to_first}
        header |= {"of": spec.key, "seconds": render.SECONDS}
        if spec.key not in self._told:
            header["spec"] = spec.data
            self._told.add(spec.key)
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
        if self.process is None or self._owner != os.getpid() or self.process.poll() is not None:
            pipe = subprocess.PIPE
            try:
                self.process = subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            except OSError as error:
                raise _cannot_start(error.strerror or str(error)) from error
            self._owner, self._told = os.getpid(), set()
            if self._stopped:  # while it was started
                self.process.kill()
            assert self.process.stdout is not None
            if self.process.stdout.readline() != READY and not self._stopped:  # no row has to do with it
                raise _cannot_start(f"it ended with exit code {self._ended()}")
        return self.process

    def _ended(self) -> int:
        """Return how the process ended, and let it go."""
        process, self.process = self.process, None
        assert process is not None
        process.kill()
        code = process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            with suppress(OSError):  # what was not sent yet
                pipe.close()
        return code


def _send(pipe: IO[bytes], lines: Sequence[str]) -> None:
    try:
        for line in lines:
            pipe.write(line.encode("ascii") + b"\n")
        pipe.flush()
    except (OSError, ValueError):  # the process has ended, which whoever reads the answers sees as well
        return


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, set | frozenset | tuple) else str(value)


def _found(answer: Mapping[str, Any]) -> RenderResult | ValueError:
    if "error" in answer:
        return ValueError(answer["error"])
    sequences = [
        Rendered(text, tuple((start, end) for start, end in spans), last) for text, spans, last in answer["sequences"]
    ]
    return RenderResult(sequences, answer["lost"])


def _cannot_start(why: str) -> GymError:
    return GymError(
        f"the process that renders chat templates cannot be started: {why}",
        where=" ".join(COMMAND),
        fix="raise what limits processes, open files or memory here (`ulimit -a`), or run the command to see what it says",
    )


def _why(code: int) -> str:
    if code == ALARMED:
        return f"the chat template did not end within {render.SECONDS:g} s"
    return f"the chat template ended the process that renders it (exit code {code})"


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until nobody asks any more."""
    known: dict[str, ChatRenderer] = {}
    for line in requests:
        header = json.loads(line)
        render.SECONDS = header["seconds"]
        if "spec" in header:
            known[header["of"]] = ChatRenderer(ChatTemplateSpec(**header["spec"]))
        over = False
        for _ in range(header["jobs"]):
            job = requests.readline()
            answer = NOT_TRIED if over else _answer(TASKS[header["task"]], known[header["of"]], job)
            over = over or (header["to_first"] and "error" in answer)
            answers.write(json.dumps(answer).encode("ascii") + b"\n")
            if header["careful"]:
                answers.flush()
        answers.flush()


def _answer(
    task: Callable[[ChatRenderer, dict[str, Any]], dict[str, Any]], chats: ChatRenderer, job: bytes
) -> dict[str, Any]:
    try:
        return task(chats, json.loads(job))
    except MemoryError:
        return {"error": f"the chat template takes more than {MEMORY >> 30} GiB of memory"}
    except ValueError as error:
        return {"error": str(error)}
    except Exception as error:  # rows hold what nobody thought of: a number as a thought, objects without end
        return {"error": f"rendering it raised {type(error).__name__}: {str(error)[:200]}"}


def _as_data(found: RenderResult) -> dict[str, Any]:
    return {"sequences": [[each.text, each.spans, each.last] for each in found.sequences], "lost": list(found.lost)}


TASKS: dict[str, Callable[[ChatRenderer, dict[str, Any]], dict[str, Any]]] = {
    "control": lambda chats, job: {"names": chats.control},
    "reads": lambda chats, job: {"names": chats.reads},
    "chat": lambda chats, job: _as_data(chats.chat(RenderRequest(**job))),
    "learnable": lambda chats, job: _as_data(chats.learnable(RenderRequest(**job))),
}


def main() -> None:
    """Serve standard input within limits; whoever interrupts the terminal means the process that asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if resource is not None:
        render.ALARM = True
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        allowed = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()

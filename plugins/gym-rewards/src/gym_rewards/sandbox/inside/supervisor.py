"""The first code of a sandboxed process: it takes its rights away, then runs what it was given.

Started with `name=value` arguments (`Job`), the program on a file descriptor. It stays as a supervisor outside of what it
makes: it ends the program at its deadline, and its exit status is the verdict. It starts once for every test of every
answer, so it imports only what costs next to nothing: no pathlib, no typing, no json.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

PASSED, FAILED, UNCHECKED, LATE, UNAVAILABLE = 0, 1, 3, 124, 125

_READY = 3  #: descriptor on which the program's process says that it is confined


class Job:
    """What to run and how to confine it, from `name=value` arguments."""

    def __init__(self, arguments: Sequence[str]) -> None:
        given = [argument.partition("=")[::2] for argument in arguments]
        values = dict(given)
        self.namespaces = values["namespaces"] == "True"
        self.user_namespace = values["user_namespace"] == "True"
        self.uid = int(values["uid"])  #: 0 to stay who one is
        self.seconds = float(values["seconds"])
        self.disk = int(values["disk"])  #: bytes
        self.directory = values["directory"]
        self.entry = values["entry"]  #: `module:function` beside this file that gets the source
        self.libraries = [value for name, value in given if name == "library"]
        self.limits = {name: int(value) for name, value in given if name.startswith("RLIMIT_")}
        self.filter = bytes.fromhex(values["filter"])
        with os.fdopen(int(values["source"]), "r", encoding="utf-8", errors="surrogatepass", newline="") as file:
            self.source = file.read()


def main() -> NoReturn:
    """Isolate, fork, supervise. The child never returns to code that has rights."""
    job = Job(sys.argv[1:])
    with _or_give_up():
        from . import confinement  # fails where the system is not Linux

        function = _function(job.entry)  # once confined, the file is out of reach
        del sys.path[0]
        if job.namespaces:
            confinement.enter_namespaces(job.user_namespace)
        reader, writer = os.pipe()
        child = os.fork()
    if child:
        os.close(writer)
        os._exit(_supervise(child, reader, job))
    with _or_give_up():
        os.setsid()  # signals to its own group reach nobody else
        os.dup2(writer, _READY)
        os.closerange(_READY + 1, 4096)
        if job.namespaces:
            confinement.enter_root(job.directory, job.libraries, job.disk)
        else:
            os.chdir(job.directory)
            confinement.read_only(job.libraries)
        confinement.drop_rights(job.uid, job.limits)
        confinement.filter_calls(job.filter)
        null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    os.write(_READY, b"!")
    os.close(_READY)
    os.environ.clear()
    sys.dont_write_bytecode = True
    function(job.source)
    sys.exit(PASSED)


class _or_give_up:  # noqa: N801 - reads as a statement
    """Say why no sandbox can be made here, and end with the status for it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201 - its only channel
            os._exit(UNAVAILABLE)


def _function(entry: str) -> Callable[[str], None]:
    """Return what works on the source."""
    module, _, name = entry.partition(":")
    function: Callable[[str], None] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return function


def _supervise(child: int, ready: int, job: Job) -> int:
    """Wait for the program, or end it; return the verdict."""
    late: list[int] = []

    def ring(signum: int, frame: object) -> None:
        late.append(signum)
        os.kill(child, signal.SIGKILL)

    confined = os.read(ready, 1) == b"!"
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, job.seconds)
    _, status = os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if not confined:
        return UNAVAILABLE
    if late:
        return LATE
    if status == 0:
        return PASSED
    # A program may end as it likes; only a check of ours says that it had nothing to check.
    return UNCHECKED if job.entry.startswith("checks:") and os.waitstatus_to_exitcode(status) == UNCHECKED else FAILED

"""Running Python that nobody trusts: a process of its own, confined by the kernel of Linux, with limits.

Nothing here knows about rewards. docs/rewards.md says what is kept out and what is not; docs/adr tells why it is done so.
"""

from __future__ import annotations

import enum
import itertools
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from gym_core.errors import GymError
from gym_rewards.sandbox import seccomp as calls
from gym_rewards.sandbox.inside import supervisor
from gym_rewards.sandbox.inside.channel import pack

_HERE = Path(__file__).parent
_GRACE = 20.0  #: seconds for processes to start and to be taken down, beyond what the program may take
_MIB = 2**20
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from inside.supervisor import main; main()"
_numbers = itertools.count()


@dataclass(frozen=True)
class Level:
    """One way to confine a program; `gym_rewards.sandbox.inside.confinement` carries it out."""

    name: str
    namespaces: bool = False
    user_namespace: bool = False
    own_user: bool = False

    @property
    def threads(self) -> bool:
        """Whether threads can be counted, and so be allowed: the kernel counts by user, and never those of root."""
        return self.own_user or (self.user_namespace and os.geteuid() != 0)


#: The ways to reach each level, the better ones first; some are for root alone.
LEVELS = (
    Level("namespaces", namespaces=True, own_user=True),
    Level("namespaces", namespaces=True, user_namespace=True),
    Level("landlock", own_user=True),
    Level("landlock"),
)


_FIXES = {
    "namespaces": "permit them to this user or container, or accept `isolation: landlock`: see `code` in docs/rewards.md",
    "landlock": "run on a Linux from 6.2 on that has it: see `code` in docs/rewards.md",
}


@dataclass(frozen=True)
class Limits:
    """What a program may use. All that it holds in memory is `memory`, `disk` and some MiB of the kernel's."""

    seconds: float = 5.0  #: on the clock; of processor time a second more
    memory: int = 512  #: MiB of address space of its one process
    threads: int = 4  #: with the first
    output: int = 1  #: MiB of any one file, standard output too
    disk: int = 32  #: MiB of all files


class Verdict(enum.Enum):
    """How a program or the check of it ended."""

    PASSED = enum.auto()  #: with status 0; or the check found nothing wrong
    FAILED = enum.auto()
    LATE = enum.auto()  #: ended at its deadline
    UNCHECKED = enum.auto()  #: the check did not ask the program for anything, or could not


_VERDICTS = {supervisor.PASSED: Verdict.PASSED, supervisor.LATE: Verdict.LATE, supervisor.UNCHECKED: Verdict.UNCHECKED}


@cache
def level(name: str) -> Level:
    """Return the way by which this machine permits a level, found out by trying. Raises GymError where there is none."""
    if sys.platform != "linux":
        raise GymError(
            f"programs cannot be confined on {platform.system()}", fix="run on Linux: `code` in docs/rewards.md"
        )
    calls.program()  # no level can do without it
    reasons = []
    for one in LEVELS:
        if one.name == name:
            try:
                if run("import json, socket", Limits(seconds=30), one)[0] is Verdict.PASSED:
                    return one
                reasons.append("the user of the program cannot read the Python that runs this")
            except GymError as error:
                reasons.append(error.problems[0].why)
    raise GymError(f"programs cannot be confined by {name} here: {reasons[-1]}", fix=_FIXES[name])


def run(source: str, limits: Limits, level: Level, stdin: str = "") -> tuple[Verdict, str]:
    """Run a program; return how it ended, and what it printed, cut at `limits.output`.

    Raises GymError where the machine does not let the level be reached.
    """
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as printed,
        tempfile.TemporaryDirectory(prefix="gym-sandbox-") as directory,
    ):
        given.write(stdin.encode("utf-8", "surrogatepass"))
        given.seek(0)
        process = _start(source, "program_loader:run", limits, level, directory, given, printed)
        verdict = _finish(process, limits)
        printed.seek(0)
        return verdict, printed.read(limits.output * _MIB).decode("utf-8", "replace")


def examine(source: str, check: str, limits: Limits, level: Level) -> Verdict:
    """Run a program in one sandbox and a check of it in another, code that calls its functions; return the check's verdict.

    The program never sees the check and has no hand in its outcome; it answers calls with plain data. Raises GymError.
    """
    return _beside(source, check, "checks:examine", limits, level)


def call(
    source: str,
    name: str,
    arguments: Sequence[Any],
    expected: Sequence[Any],
    limits: Limits,
    level: Level,
    tolerance: float = 0.0,
) -> Verdict:
    """Run a program, and in another sandbox call its function, or a method of its class `Solution`; return the verdict.

    It passes when what it returns is one of `expected`, as JSON would write it; where decimals are expected they may differ by
    `tolerance`, or by this part of them. Raises GymError, and TypeError for arguments
    that are no plain data.
    """

    def refuse(value: object) -> None:
        raise TypeError(f"a {type(value).__name__} cannot be handed to a program")

    spec = {"name": name, "arguments": list(arguments), "expected": list(expected), "tolerance": tolerance}
    return _beside(source, json.dumps(pack(spec, refuse)), "checks:call", limits, level)


def _beside(source: str, check: str, entry: str, limits: Limits, level: Level) -> Verdict:
    with (
        tempfile.TemporaryDirectory(prefix="gym-sandbox-") as here,
        tempfile.TemporaryDirectory(prefix="gym-sandbox-") as there,
    ):
        ours, theirs = socket.socketpair()
        longer = replace(limits, seconds=limits.seconds + _GRACE)  # it is the check that says what is late
        serving = _start(source, "program_server:serve", longer, level, here, theirs, theirs)
        try:
            with ours, theirs:  # neither end may stay open here: each side has to see that the other has ended
                checking = _start(check, entry, limits, level, there, ours, ours)
            return _finish(checking, limits)
        finally:
            _end(serving)


def _start(
    source: str, entry: str, limits: Limits, level: Level, directory: str, stdin: Any, stdout: Any
) -> subprocess.Popen[bytes]:
    settings: list[tuple[str, object]] = [
        ("entry", entry),
        ("directory", os.path.realpath(directory)),
        ("namespaces", level.namespaces),
        ("user_namespace", level.user_namespace),
        ("uid", _user() if level.own_user else 0),
        ("seconds", limits.seconds),
        ("disk", limits.disk * _MIB),
        ("filter", calls.program(level.threads).hex()),
        *(("library", path) for path in _libraries()),
        *_rlimits(limits, level).items(),
    ]
    with tempfile.TemporaryFile() as file:
        file.write(source.encode("utf-8", "surrogatepass"))
        file.seek(0)
        # No site packages, no directory of the script on the path; sets in the same order every time.
        command = [sys.executable, "-P", "-s", "-S", "-X", "utf8", "-c", _START, str(_HERE)]
        command += [f"source={file.fileno()}", *(f"{name}={value}" for name, value in settings)]
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            pass_fds=[file.fileno()],
            env={"PYTHONHASHSEED": "0", "PYTHONINTMAXSTRDIGITS": "0"},
            cwd=directory,
            start_new_session=True,
        )


def _finish(process: subprocess.Popen[bytes], limits: Limits) -> Verdict:
    """Wait for a guard, end what is left of it, and return its verdict."""
    try:
        _, said = process.communicate(timeout=limits.seconds + _GRACE)
    except subprocess.TimeoutExpired:
        said = b""
    finally:
        code = _end(process)
    if code == supervisor.UNAVAILABLE:
        why = said.decode("utf-8", "replace").strip().splitlines() or ["its process did not start"]
        raise GymError(why[-1], key="sandbox", fix="see `code` in docs/rewards.md")
    return _VERDICTS.get(code, Verdict.FAILED)


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a guard, with which its program ends, and return its status."""
    with suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    if process.stderr:
        process.stderr.close()
    return code


def _rlimits(limits: Limits, level: Level) -> dict[str, int]:
    """Return limits by the names of the module `resource`."""
    return {
        "RLIMIT_AS": limits.memory * _MIB,
        "RLIMIT_CPU": int(limits.seconds) + 1,
        "RLIMIT_FSIZE": limits.output * _MIB,
        # With a user of its own the count is the program's; the supervisor is in it where it shares the user namespace.
        "RLIMIT_NPROC": limits.threads + level.user_namespace if level.threads else 0,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_SIGPENDING": 64,
        "RLIMIT_CORE": 0,
    }


def _user() -> int:
    """Return a user number that nothing else runs as: above what systems give to people and services."""
    return 2_000_000_000 + os.getpid() % 10_000 * 10_000 + next(_numbers) % 10_000


@cache
def _libraries() -> list[str]:
    """Return the directories of the standard library and of the shared libraries it rests on, outer ones first."""
    paths = {sysconfig.get_path("stdlib"), f"{sys.base_prefix}/lib"}
    paths |= {"/lib", "/lib64", "/usr/lib", "/usr/lib64"}
    found = sorted(path for path in paths if Path(path).is_dir())
    return [path for path in found if not any(path.startswith(f"{other}/") for other in found)]

"""Running Python that nobody trusts: a process of its own with limits, and what this machine lets us add to them.

Nothing here knows about rewards. docs/rewards.md says what is kept out at which level, and what is not.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gym_core.errors import GymError

_HERE = Path(__file__).parent
_PASSED, _UNAVAILABLE = 0, 125
_GRACE = 20.0  #: seconds for processes to start and to be taken down, beyond what the program may take
_MIB = 2**20
_numbers = itertools.count()


@dataclass(frozen=True)
class Level:
    """One way to confine a program; `gym_rl.rewards.sandbox.guard` carries it out."""

    name: str
    namespaces: bool = False
    user_namespace: bool = False
    own_user: bool = False


#: From the strongest to the weakest; the second is the first for those who are not root.
LEVELS = (
    Level("namespaces", namespaces=True, own_user=True),
    Level("namespaces", namespaces=True, user_namespace=True),
    Level("user", own_user=True),
    Level("limits"),
)


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    seconds: float = 5.0  #: on the clock; of processor time a second more
    memory: int = 512  #: MiB of address space, each process
    processes: int = 4  #: with threads
    output: int = 1  #: MiB of any one file, standard output too
    disk: int = 32  #: MiB of all files, where there are namespaces


@cache
def strongest() -> Level:
    """Return the strongest level that this machine permits, found out by trying. Raises GymError where there is none."""
    reasons = []
    for level in LEVELS:
        try:
            if run("import json, socket", Limits(seconds=30), level)[0]:
                return level
            reasons.append(f"{level.name}: no Python in it")
        except GymError as error:
            reasons.append(f"{level.name}: {error.problems[0].why}")
    raise GymError(f"no sandbox can be made here ({reasons[-1]})", fix="leave the reward `code` out")


def run(source: str, limits: Limits, level: Level, stdin: str = "") -> tuple[bool, str]:
    """Run a program; return whether it ended with status 0 in time, and what it printed, cut at `limits.output`.

    Raises GymError where the machine does not let the level be reached.
    """
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as printed,
        tempfile.TemporaryDirectory(prefix="gym-sandbox-") as directory,
    ):
        given.write(stdin.encode("utf-8", "surrogatepass"))
        given.seek(0)
        process = _start(source, "", limits, level, directory, given.fileno(), printed.fileno())
        passed = _finish(process, limits)
        printed.seek(0)
        return passed, printed.read(limits.output * _MIB).decode("utf-8", "replace")


def examine(source: str, test: str, limits: Limits, level: Level) -> bool:
    """Run a program in one sandbox and a test of it in another, which calls the program's functions; return its verdict.

    The program never sees the test and has no hand in its outcome; it answers calls with plain data. Raises GymError.
    """
    with (
        tempfile.TemporaryDirectory(prefix="gym-sandbox-") as here,
        tempfile.TemporaryDirectory(prefix="gym-sandbox-") as there,
    ):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            serving = _start(source, "serve", limits, level, here, theirs, theirs)
            testing = _start(test, "examine", limits, level, there, ours, ours)
        passed = _finish(testing, limits)
        _finish(serving, limits)
        return passed


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
        *(("library", path) for path in _libraries()),
        *_rlimits(limits, level).items(),
    ]
    with tempfile.TemporaryFile() as file:
        file.write(source.encode("utf-8", "surrogatepass"))
        file.seek(0)
        # No site packages, no directory of the script on the path, no bytecode; sets in the same order every time.
        command = [
            sys.executable,
            "-P",
            "-s",
            "-S",
            "-B",
            "-X",
            "utf8",
            str(_HERE / "guard.py"),
            f"source={file.fileno()}",
        ]
        command += [f"{name}={value}" for name, value in settings]
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            pass_fds=[file.fileno()],
            env={"PYTHONHASHSEED": "0"},
            cwd=directory,
            start_new_session=True,
        )


def _finish(process: subprocess.Popen[bytes], limits: Limits) -> bool:
    """Wait for a guard, end what is left of it, and return its verdict."""
    try:
        _, said = process.communicate(timeout=limits.seconds + _GRACE)
    except subprocess.TimeoutExpired:
        said = b""
    finally:
        with suppress(ProcessLookupError):  # all of it has ended
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        if process.stderr:
            process.stderr.close()
    if code == _UNAVAILABLE:
        why = said.decode("utf-8", "replace").strip().splitlines() or ["its process did not start"]
        raise GymError(f"the sandbox could not be made: {why[-1]}", fix="see docs/rewards.md for what it needs")
    return code == _PASSED


def _rlimits(limits: Limits, level: Level) -> dict[str, int]:
    """Return limits by the names of the module `resource`."""
    return {
        "RLIMIT_AS": limits.memory * _MIB,
        "RLIMIT_CPU": int(limits.seconds) + 1,
        "RLIMIT_FSIZE": limits.output * _MIB,
        # With a user of its own the count is the program's; the supervisor is in it where it shares the user namespace.
        # Else it is that of everything that the user runs, and nothing further can be started.
        "RLIMIT_NPROC": limits.processes + level.user_namespace if level.name != "limits" else 0,
        "RLIMIT_NOFILE": 64,
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

"""The process of a sandbox, from outside: its command line and limits, waiting for it, ending it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from gym_core.errors import GymError
from gym_rewards.sandbox import seccomp
from gym_rewards.sandbox.inside import supervisor
from gym_rewards.sandbox.limits import Level, Limits, Verdict

_HERE = Path(__file__).parent
GRACE = 20.0  #: seconds for processes to start and to be taken down, beyond what the program may take
_MIB = 2**20
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from inside.supervisor import main; main()"
_numbers = itertools.count()
_VERDICTS = {supervisor.PASSED: Verdict.PASSED, supervisor.LATE: Verdict.LATE, supervisor.UNCHECKED: Verdict.UNCHECKED}


def start(
    source: str, entry: str, limits: Limits, level: Level, directory: str, stdin: Any, stdout: Any
) -> subprocess.Popen[bytes]:
    """Start a supervisor that runs `entry`, `module:function` of `inside`, on a program, in a directory of the program's own."""
    settings: list[tuple[str, object]] = [
        ("entry", entry),
        ("directory", os.path.realpath(directory)),
        ("namespaces", level.namespaces),
        ("user_namespace", level.user_namespace),
        ("uid", _user() if level.own_user else 0),
        ("seconds", limits.seconds),
        ("disk", limits.disk * _MIB),
        ("filter", seccomp.program(level.threads).hex()),
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


def finish(process: subprocess.Popen[bytes], limits: Limits) -> Verdict:
    """Wait for a guard, end what is left of it, and return its verdict."""
    try:
        _, said = process.communicate(timeout=limits.seconds + GRACE)
    except subprocess.TimeoutExpired:
        said = b""
    finally:
        code = end(process)
    if code == supervisor.UNAVAILABLE:
        why = said.decode("utf-8", "replace").strip().splitlines() or ["its process did not start"]
        raise GymError(why[-1], key="sandbox", fix="see `code` in docs/rewards.md")
    return _VERDICTS.get(code, Verdict.FAILED)


def end(process: subprocess.Popen[bytes]) -> int:
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

"""Running Python that nobody trusts: a process of its own, confined by the kernel of Linux, with limits.

Nothing here knows about rewards. docs/rewards.md says what is kept out and what is not; docs/adr tells why it is done so.
"""

from __future__ import annotations

import json
import platform
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from gym_core.errors import GymError
from gym_rewards.sandbox import seccomp
from gym_rewards.sandbox.inside.channel import pack
from gym_rewards.sandbox.limits import LEVELS, Level, Limits, Verdict
from gym_rewards.sandbox.processes import GRACE, end, finish, start

__all__ = ["LEVELS", "Level", "Limits", "Verdict", "call", "examine", "level", "run"]

_MIB = 2**20
_FIXES = {
    "namespaces": "permit them to this user or container, or accept `isolation: landlock`: see `code` in docs/rewards.md",
    "landlock": "run on a Linux from 6.2 on that has it: see `code` in docs/rewards.md",
}


@cache
def level(name: str) -> Level:
    """Return the way by which this machine permits a level, found out by trying. Raises GymError where there is none."""
    if sys.platform != "linux":
        raise GymError(
            f"programs cannot be confined on {platform.system()}", fix="run on Linux: `code` in docs/rewards.md"
        )
    seccomp.program()  # no level can do without it
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
        process = start(source, "program_loader:run", limits, level, directory, given, printed)
        verdict = finish(process, limits)
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
        longer = replace(limits, seconds=limits.seconds + GRACE)  # it is the check that says what is late
        serving = start(source, "program_server:serve", longer, level, here, theirs, theirs)
        try:
            with ours, theirs:  # neither end may stay open here: each side has to see that the other has ended
                checking = start(check, entry, limits, level, there, ours, ours)
            return finish(checking, limits)
        finally:
            end(serving)

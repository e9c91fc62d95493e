"""A command of `gym` in a process of its own, which ends with this one, however that ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

GYM = (sys.executable, "-P", "-m", "gym_core.cli.exit_with_parent")  #: what `gym` is called by


@contextmanager
def started(
    command: Sequence[str], env: Mapping[str, str], stdout: IO[bytes] | IO[str], stderr: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command, such as `GYM` and its words; where the block is left before it has ended, it is killed.

    Ctrl-C in a terminal goes to this process alone, which passes on what is to stop.
    """
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.PIPE,  # which closes when this process dies, killed or not
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdin:
            process.stdin.close()

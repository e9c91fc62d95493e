"""The lock of an output directory: one run uses it at a time. The system releases it when the process ends."""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from gym_core.errors import BusyError, RecipeError
from gym_core.files import naming


class OutputLock:
    """A context that creates an output directory and locks it. The hidden lock file is not removed."""

    NAME: ClassVar[str] = ".lock"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file = -1

    def __enter__(self) -> OutputLock:
        """Acquire the lock. Raises BusyError when another process has it, RecipeError where the path cannot be used."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # A symbolic link in place of the lock would have this process write into somebody else's file.
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            self._file = os.open(self.directory / self.NAME, flags, 0o644)
        except OSError as error:
            is_file = error.errno == errno.EEXIST and self.directory.is_file()
            what = "is a file" if is_file else f"cannot be written to: {error.strerror}"
            raise RecipeError(what, where=str(self.directory), key="output", fix="choose another `output:`") from None
        try:
            _lock(self._file)
        except OSError as error:
            taken = error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK)  # the last two: Windows
            why = f"is in use by {self._holder()}" if taken else f"cannot be locked: {error.strerror}"
            fix = "wait for it, or choose another `output:`" if taken else "choose an `output:` on a local disk"
            self._close()
            raise BusyError(why, where=str(self.directory), key="output", fix=fix) from None
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._write({"pid": os.getpid(), "started": began, "host": platform.node()[:80]})  # hosts may share a folder
        if hasattr(os, "register_at_fork"):  # a worker that outlives this process must not keep the lock
            os.register_at_fork(after_in_child=self._close)
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # on a full disk the name stays, but not the lock
            self._write({})
        self._close()

    def _write(self, holder: dict[str, object]) -> None:
        with naming(self.directory / self.NAME):
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
            os.write(self._file, json.dumps(holder).encode())

    def _holder(self) -> str:
        words = os.read(self._file, 200).decode("utf-8", "replace").replace('"', "").strip("{}")
        return f"another run ({words})" if words else "another run"

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        os.lseek(file, 2**30, os.SEEK_SET)  # far behind the text, which others may then read
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        os.lseek(file, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

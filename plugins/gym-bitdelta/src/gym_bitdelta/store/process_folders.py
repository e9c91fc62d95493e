"""What a process has open of a store: a folder of its own under `open/`, with hard links to files and with what it is writing.

The folder is locked by the system as long as its process lives. So a file that is replaced or collected while it is served stays
where it is served from, and what a killed process leaves is known as such.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from secrets import token_hex

from gym_bitdelta.store.index import Index
from gym_core import BusyError, GymError, RecipeError
from gym_core.files import remove
from gym_core.outputlock import OutputLock

FOLDER = "open"
OWN = re.compile(r"\d+-[0-9a-f]{8}")  #: what the folder of a process is called


class ProcessFolders:
    """Gives folders to this process, and takes away those of dead ones."""

    def __init__(self, root: Path, index: Index) -> None:
        """Remember where; nothing is written yet. `index` sees to it that folders are made and taken away one at a time."""
        self._root, self._index = root / FOLDER, index
        self._turn = threading.Lock()
        self._numbers = count()
        self._locks: dict[int, OutputLock] = {}  # by process, for a forked one has its own

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Give a new folder, which is removed after the block, by the process that made it alone."""
        made, owner = self._own() / str(next(self._numbers)), os.getpid()
        try:
            made.mkdir()
        except OSError as error:
            raise self._unusable(error.strerror) from error
        try:
            yield made
        finally:
            if os.getpid() == owner:  # a forked process leaves what its parent has open
                remove(made)

    def close(self) -> None:
        """Remove the folder of this process."""
        with self._turn:
            lock = self._locks.pop(os.getpid(), None)
            if lock is not None:
                lock.__exit__()
                remove(lock.directory)

    def collect(self) -> int:
        """Take away what dead processes left; return how many. The caller alone may write to the index.

        What no store made, lies behind a symbolic link, or belongs to somebody who lets nobody else write there, stays.
        """
        found = 0
        there = [] if self._root.is_symlink() else list(self._root.glob("*"))
        for folder in [path for path in there if OWN.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]:
            lock = OutputLock(folder)
            try:
                lock.__enter__()
            except (BusyError, RecipeError):
                continue
            lock.__exit__()
            remove(folder)
            found += 1
        return found

    def _own(self) -> Path:
        with self._turn:
            if os.getpid() not in self._locks:
                lock = OutputLock(self._root / f"{os.getpid()}-{token_hex(4)}")
                with self._index.writing():  # so that nobody takes it away before it is locked
                    try:
                        lock.__enter__()
                    except RecipeError as error:
                        raise self._unusable(error.problems[0].why) from error
                    except OSError as error:
                        raise self._unusable(error.strerror) from error
                self._locks[os.getpid()] = lock
            return self._locks[os.getpid()].directory

    def _unusable(self, why: str | None) -> GymError:
        fix = "whoever opens variants links them here: make room, or let this user write here"
        return GymError(f"no folder can be made: {why}", where=str(self._root), fix=fix)

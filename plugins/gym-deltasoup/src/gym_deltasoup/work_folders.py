"""Folders for what is written on the way to a result, of which none stays: nor those of processes that were killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from gym_core import BusyError
from gym_core.files import remove
from gym_core.outputlock import OutputLock

TAKEN = ".taken-"  #: how folders begin whose contents were sent, and not yet looked at


@contextmanager
def work_folder(place: Path, prefix: str) -> Iterator[Path]:
    """Give a new folder in a place, which is removed after the block; those that killed processes left go at once."""
    clear_left(place, prefix)
    folder = Path(mkdtemp(dir=place, prefix=prefix))
    try:
        with OutputLock(folder):
            yield folder
    finally:
        remove(folder)


def clear_left(place: Path, prefix: str) -> None:
    """Remove the folders that killed processes left in a place.

    A living process writes its name only after it has locked its folder, so one with a name and without a lock is of a dead one.
    """
    for folder in place.glob(f"{prefix}*"):
        name = folder / OutputLock.NAME
        if folder.is_symlink() or not name.is_file() or not name.stat().st_size:
            continue
        try:
            with OutputLock(folder):
                remove(folder)
        except BusyError:
            continue

"""Atomic writes of files and folders, with the permissions that the umask of this process gives."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from gym_core.errors import RecipeError

BUILDING = ".building"  #: suffix of the hidden name of what is not complete yet


def cache_dir() -> Path:
    """Return the cache folder, `$GYM_CACHE` or `~/.cache/gym`, which may not exist yet."""
    return expanded(os.environ.get("GYM_CACHE") or "~/.cache/gym")


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder for a leading `~` or `~user`. Raises RecipeError where none is known."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        why = f"no home folder is known for `{Path(path).parts[0]}`"
        raise RecipeError(why, where=str(path), fix="write the path out, from / on") from None


@contextmanager
def replacing(path: Path, alone: bool = False) -> Iterator[Path]:
    """Yield a hidden path beside `path`; the file or folder that the block writes there replaces `path` in one step.

    Before that it is flushed to the disk and gets the usual permissions. Each writer has a hidden path of its own, removed if
    the block raises. `alone` says that no other process writes `path`: leftovers of killed writers are then removed first. A
    folder cannot replace one that is not empty. Raises what the block raises, and OSError where the disk is full or fails.
    """
    if alone:
        for left in path.parent.glob(f".{path.name}.[0-9]*-????????{BUILDING}"):
            remove(left)
    building = path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}{BUILDING}")
    try:
        yield building
        to_disk(building)
        building.replace(path)
        _sync(path.parent)
    finally:
        remove(building)


def write_atomically(path: Path, text: str, alone: bool = False) -> None:
    """Write a text file atomically: readers find the old or the new text, also after a crash."""
    with naming(path), replacing(path, alone) as building:
        building.write_text(text, encoding="utf-8")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an OSError of the block name a file: one of writing or closing it, as on a full disk, names none by itself."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Flush a file, or a folder with its contents, to the disk, with the permissions that the umask gives."""
    by_umask(path)
    for part in [*path.rglob("*"), path]:
        _sync(part)


def by_umask(path: Path) -> None:
    """Give a file, or all of a folder, the permissions of new ones; safetensors and `tempfile` let only the owner read."""
    if os.name != "posix":
        return
    mask = os.umask(0o077)
    os.umask(mask)
    for part in [path, *path.rglob("*")]:
        if not part.is_symlink():
            part.chmod(stat.S_IMODE(part.stat().st_mode) | (0o777 if part.is_dir() else 0o666) & ~mask)


def _sync(path: Path) -> None:
    if os.name == "posix" or not path.is_dir():  # elsewhere a folder cannot be opened, and need not be
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

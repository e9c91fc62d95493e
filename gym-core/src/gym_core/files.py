"""Files and folders that others may read: written whole or not at all, with the modes that the umask of this process gives."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

BUILDING = ".building"  #: ends the hidden name of what is not whole yet


def cache_dir() -> Path:
    """Return where Gym keeps what it can make again, `$GYM_CACHE` or `~/.cache/gym`; it may not exist yet."""
    return Path(os.environ.get("GYM_CACHE") or "~/.cache/gym").expanduser()


@contextmanager
def replacing(path: Path, alone: bool = False) -> Iterator[Path]:
    """Give a hidden path beside `path`; the file or folder that the block makes there takes the place of `path` in one step.

    By then it is on the disk, with the usual modes. Each writer has a path of its own, which is removed where the block raises.
    With `alone`, nobody else may be writing `path`, and what killed writers left is removed first. A folder cannot take
    the place of a folder that is not empty. Raises what the block raises, and OSError where the disk does not take it.
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
    """Write a text file so that whoever reads, also after a crash, finds all of the old or all of the new."""
    with replacing(path, alone) as building:
        building.write_text(text, encoding="utf-8")


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Wait until a file, or a folder with all that is in it, is on the disk, for others to read as the umask allows."""
    by_umask(path)
    for part in [*path.rglob("*"), path]:
        _sync(part)


def by_umask(path: Path) -> None:
    """Give a file, or all that is in a folder, the modes that it has when it is written in the usual way.

    safetensors and `tempfile` make files that nobody else can read, whatever the umask.
    """
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

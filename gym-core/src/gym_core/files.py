"""Files that others may read: written whole or not at all, with the modes that the umask of this process gives."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that whoever reads, also after a crash, finds all of the old or all of the new."""
    temporary = path.with_name(f".{path.name}.new")  # one name, so that what a killed process left is written over
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    if os.name == "posix":  # elsewhere a directory cannot be opened, and need not be
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)


def by_umask(path: Path) -> None:
    """Give a file, or all that is in a folder, the modes that it has when it is written in the usual way.

    safetensors and `tempfile` make files that nobody else can read, whatever the umask.
    """
    if os.name != "posix":
        return
    mask = os.umask(0o077)
    os.umask(mask)
    for part in [path, *path.rglob("*")] if path.is_dir() else [path]:
        if not part.is_symlink():
            part.chmod(stat.S_IMODE(part.stat().st_mode) | (0o777 if part.is_dir() else 0o666) & ~mask)

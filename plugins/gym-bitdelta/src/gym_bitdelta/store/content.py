"""Files named by the SHA-256 of what is in them, two levels deep."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gym_bitdelta.store.record import StoredFile, wrong_name
from gym_core import GymError
from gym_core.errors import printable
from gym_core.files import BUILDING, to_disk

FOLDER = "files"
CHUNK = 1 << 20
MOST_FILES = 1000
SHA256 = re.compile("[0-9a-f]{64}")
#: Why a file cannot be linked, and can be copied: it is of another owner, has as many links as may be, or the system knows none.
NO_LINK = (errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.ENOTSUP)


class Content:
    """The files of a store."""

    def __init__(self, root: Path) -> None:
        """Remember where; the folder may not be there yet."""
        self.root = root / FOLDER

    def path(self, sha256: str) -> Path:
        """Return where a file lies."""
        return self.root / sha256[:2] / sha256[2:]

    def place(self, staged: Path, files: Iterable[StoredFile]) -> None:
        """Move files, which lie in `staged` under their hashes, where they belong. A sound file takes the place of any other."""
        folders = {self.root.parent}
        for sha256 in sorted({each.sha256 for each in files}):
            target = self.path(sha256)
            if not target.parent.is_dir():
                target.parent.mkdir(parents=True, exist_ok=True)
                folders.add(self.root)
            (staged / sha256).replace(target)
            folders.add(target.parent)
        for folder in sorted(folders, reverse=True):
            sync(folder)

    def link(self, files: Iterable[StoredFile], into: Path, user: str) -> StoredFile | None:
        """Link files into a folder under their names, or copy what cannot be linked; return the first one that is gone.

        Raises GymError for one that is no plain file: what it names could change. Raises OSError where the disk does not take it.
        """
        for each in files:
            target, path = into / each.name, self.path(each.sha256)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                if not stat.S_ISREG(path.lstat().st_mode):
                    raise self.damaged(each, user, "is no plain file")
                _link_or_copy(path, target)
            except FileNotFoundError:
                return each
            if target.is_symlink():  # it became one in this moment
                raise self.damaged(each, user, "is no plain file")
        return None

    def has(self, file: StoredFile) -> bool:
        """Whether a file is there."""
        return self.path(file.sha256).exists()

    def check(self, files: Iterable[StoredFile], folder: Path, user: str) -> None:
        """Read linked files in full. Raises GymError for one that is not what was written."""
        for each in files:
            if hashed(folder / each.name) != each.sha256:
                raise self.damaged(each, user, "is not what was written: its SHA-256 differs")

    def damaged(self, file: StoredFile, user: str, why: str) -> GymError:
        """Return the error of a file."""
        return GymError(
            f"`{file.name}` of `{user}` {why}",
            where=str(self.path(file.sha256)),
            fix="put a copy of this file back, or remove the variant and create it again",
        )

    def hashes(self) -> Iterator[str]:
        """Yield the names of all files; what is called otherwise, or lies behind a symbolic link, is not of this store."""
        for folder in self.root.glob("??"):
            if not self._leads_elsewhere(folder):
                found = (folder.name + path.name for path in folder.iterdir() if not path.is_dir())
                yield from (name for name in found if SHA256.fullmatch(name))

    def remove(self, hashes: Iterable[str]) -> tuple[int, int]:
        """Remove files that are there; return how many, and their bytes. What is open elsewhere may stay until the next time.

        What lies behind a symbolic link stays: it may be that of another store.
        """
        count = size = 0
        for sha256 in hashes:
            path = self.path(sha256)
            if self._leads_elsewhere(path.parent):
                continue
            try:
                held = path.stat().st_size
                path.unlink()
            except (FileNotFoundError, PermissionError):  # the latter: it is open on Windows
                continue
            count, size = count + 1, size + held
        return count, size

    def _leads_elsewhere(self, folder: Path) -> bool:
        return folder.is_symlink() or self.root.is_symlink()


def staged(source: Path, into: Path) -> Sequence[StoredFile]:
    """Copy all files of a folder to a flat one, named by their hashes, and wait until they are on the disk.

    Raises GymError where there are none or too many, and OSError where the disk does not take them.
    """
    names = sorted(
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and not path.name.endswith(BUILDING)
    )
    if not 1 <= len(names) <= MOST_FILES:
        raise GymError(
            f"there are {len(names):,} files, and a variant has 1 to {MOST_FILES:,}",
            where=str(source),
            fix="name the directory of an artifact",
        )
    for name in names:
        if why := wrong_name(name):
            raise GymError(
                f"the name {printable(repr(name), 80)} cannot be kept: {why}", where=str(source), fix="rename it"
            )
    found = [_staged(source / name, name, into) for name in names]
    to_disk(into)
    return found


def hashed(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name == "posix":  # elsewhere a folder cannot be opened, and need not be
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _link_or_copy(path: Path, target: Path) -> None:
    try:
        target.hardlink_to(path)
    except OSError as error:
        if error.errno not in NO_LINK:
            raise
        shutil.copyfile(path, target)


def _staged(source: Path, name: str, into: Path) -> StoredFile:
    digest, size, building = hashlib.sha256(), 0, into / f"0{BUILDING}"
    with source.open("rb") as read, building.open("wb") as write:
        while chunk := read.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            write.write(chunk)
    building.replace(into / digest.hexdigest())
    return StoredFile(name=name, sha256=digest.hexdigest(), bytes=size)

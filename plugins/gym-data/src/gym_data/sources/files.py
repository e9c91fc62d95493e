"""Rows of local files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_core.files import expanded
from gym_data.kinds import Format
from gym_data.sources.compression import kind_of
from gym_data.sources.readers import READERS, find_files, read_text

if TYPE_CHECKING:
    from gym_data.sources.config import File

CHUNK = 1 << 20  #: bytes hashed at a time


class FileRows:
    """The rows of a file, or of all files of a folder in the order of their names."""

    def __init__(self, config: File, format: Format | None = None, samples: int | None = None) -> None:
        """Find the files; `format` and `samples` are what a registry says of them.

        Raises DataError when there are none, or of several kinds.
        """
        self.format, self.samples = format, samples
        self.files = find_files(expanded(config.path))
        suffix = kind_of(self.files[0])
        self._read = partial(read_text, unit=config.text_unit) if suffix == ".txt" else READERS[suffix]
        self._unit = config.text_unit if suffix == ".txt" else ""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows as they are written."""
        for file in self.files:
            yield from self._read(file)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the bytes of all files."""
        digest = hashlib.sha256(self._unit.encode())
        for file in self.files:
            digest.update(hash_file(file).encode())
        return digest.hexdigest()


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()

"""Files as their names say that they were compressed: opened as what is in them, or refused."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from gym_core import DataError

GIVEN = 1 << 14  #: compressed bytes that a frame is given at once


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, as what was compressed where it was. Raises DataError where that is damaged or cut off."""
    open_it = COMPRESSED.get(path.suffix.lower())
    with path.open("rb") if open_it is None else open_it(path) as file:
        try:
            yield file
        except (gzip.BadGzipFile, EOFError, zlib.error, _Damaged) as error:
            why = f"not all of it is {path.suffix.lower().removeprefix('.')}: {error}"
            raise DataError(why, where=str(path), fix="copy or download it again") from None


def kind_of(path: Path) -> str:
    """Return the ending of a file in lower case, such as `.jsonl`; of one that is compressed, that of what is in it.

    Tables such as Parquet are compressed inside, and compressed once more they are of a kind of their own.
    """
    suffix = path.suffix.lower()
    inside = Path(path.stem).suffix.lower()
    if suffix not in COMPRESSED:
        return suffix
    return inside if inside in TEXTS else inside + suffix


def check_decompression(path: Path) -> None:
    """Raise DataError where a package that the file needs is not installed."""
    if path.suffix.lower() == ".zst" and find_spec("zstandard") is None:
        raise DataError(
            "files that end in `.zst` need the package zstandard",
            where=str(path),
            fix="python -m pip install zstandard, or unpack the file",
        )


class _Damaged(Exception):
    """What zstandard says of a file."""


class _Zstandard(io.RawIOBase):
    """Frames of Zstandard (RFC 8878) one after another; zstandard's own reader takes one that is cut off for its end."""

    def __init__(self, path: Path) -> None:
        self._library: Any = import_module("zstandard")
        self._file = path.open("rb")
        self._frame: Any = None
        self._given = self._ready = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            given = self._given or self._file.read(GIVEN)
            if not given:
                if self._frame is not None:
                    raise EOFError("it is cut off")
                return 0
            self._frame = self._frame or self._library.ZstdDecompressor().decompressobj()
            try:
                self._ready = self._frame.decompress(given)
            except self._library.ZstdError as error:
                raise _Damaged(str(error)) from None
            self._given = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def _zstandard(path: Path) -> BinaryIO:
    check_decompression(path)
    return io.BufferedReader(_Zstandard(path))


#: Endings of files that are compressed, and what opens them.
COMPRESSED: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.GzipFile,
    ".zst": _zstandard,
}
TEXTS = (".json", ".jsonl", ".csv", ".tsv", ".txt")  #: endings of what is read from such files
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.zst", ".7z", ".rar")  #: endings of several files in one

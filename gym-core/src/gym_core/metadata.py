"""Reads the metadata of installed distributions as untrusted files: sizes are bounded, and names are checked.

Nothing is imported and nothing blocks: a pipe, a device, a cycle of links or invalid UTF-8 is an error of that file only.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import NamedTuple

from gym_core.errors import Problem

MOST = 32 * 2**20  #: bytes that are read of one file; 300,000 entry points need half of it
HEADERS = 2**20  #: bytes within which the headers must end; a description of any length may follow
_FOLDER = re.compile(
    r"([A-Za-z0-9](?:[\w.]{0,98}[A-Za-z0-9])?)(?:-([\w.+!]{1,60}))?(?:-[\w.]{1,60})?\.(?:dist|egg)-info", re.A
)
_HEADER = re.compile(rb"^([A-Z][A-Za-z-]{1,40}):[ \t]*(.*?)\s*$", re.MULTILINE)


class Folder(NamedTuple):
    """The metadata folder of one distribution."""

    name: str  #: normalised; empty where the folder is named as no distribution can be
    version: str  #: from the name of the folder
    path: str


def canonical(name: str) -> str:
    """Normalise a distribution name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def search_path() -> list[str]:
    """Return the folders that Python imports from, each once."""
    return list(dict.fromkeys(os.path.realpath(path or ".") for path in sys.path))


def metadata_folders() -> Iterator[Folder]:
    """Yield every `name-version.dist-info`, in the order of `sys.path`; of a distribution found twice the first counts."""
    seen: set[str] = set()
    for path in search_path():
        try:
            names = sorted(os.listdir(path))
        except OSError:  # a zip file, or a path that is not there
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                fits = _FOLDER.fullmatch(name)
                dist, version = (canonical(fits[1]), fits[2] or "") if fits else ("", "")
                folder = Folder(dist, version, os.path.join(path, name))
                if folder.name not in seen:
                    yield folder
                seen |= {folder.name} - {""}


def read_file(path: str, most: int = MOST, whole: bool = True) -> bytes:
    """Read a regular file of at most `most` bytes, or its beginning. Raises OSError for anything else; never blocks."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("no regular file")
        data = file.read(most + 1)
    if whole and len(data) > most:
        raise OSError(f"larger than {most / 2**20:g} MiB")
    return data


def read_headers(folder: str) -> dict[str, list[str]]:
    """Return the values of each header of a distribution, in order. Raises OSError, or UnicodeDecodeError for no UTF-8."""
    path = os.path.join(folder, "PKG-INFO" if folder.endswith(".egg-info") else "METADATA")
    head, end, _ = read_file(path, HEADERS, whole=False).replace(b"\r\n", b"\n").partition(b"\n\n")
    if not end and len(head) > HEADERS:
        raise OSError(f"headers longer than {HEADERS / 2**20:g} MiB")
    headers: dict[str, list[str]] = {}
    for key, value in _HEADER.findall(head):
        headers.setdefault(key.decode(), []).append(value.decode("utf-8"))
    return headers


def unreadable(folder: Folder, error: Exception) -> Problem:
    """Return the problem of metadata that cannot be read."""
    reason = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
    detail = error.args[0] if isinstance(error, OSError) and len(error.args) == 1 else type(error).__name__
    return Problem(f"its metadata {reason} ({detail})", where=os.path.basename(folder.path), fix="reinstall it")

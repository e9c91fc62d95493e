"""The room that a cache takes: what it holds, how much that may be, and what goes first."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ByteSize, TypeAdapter, ValidationError

from gym_core import RecipeError
from gym_data import token_cache

VARIABLE = "GYM_CACHE_SIZE"
DEFAULT = "50GB"
PAUSE = 60.0  #: seconds
_SIZE = TypeAdapter(ByteSize)


@dataclass(frozen=True)
class CacheEntry:
    """One thing that a cache holds under a name."""

    path: Path
    size: int  #: bytes
    used: float  #: when it was last read or written, in seconds since 1970


def limit() -> int:
    """Return the bytes that a cache may hold: `$GYM_CACHE_SIZE`, such as `20GB`. Raises RecipeError where it is no size."""
    return size_of(os.environ.get(VARIABLE) or DEFAULT, VARIABLE)


def size_of(text: str, key: str) -> int:
    """Return the bytes that a text such as `20GB` means. Raises RecipeError, which names `key`, where it means none."""
    try:
        return int(_SIZE.validate_python(text))
    except ValidationError:
        fix = "write a number and a unit: 500MB, 20GB, 1.5TB"
        raise RecipeError(f"`{text}` is no size", key=key, fix=fix) from None


def kept(root: Path) -> Iterator[CacheEntry]:
    """Yield what a cache holds, the least recently used first; what is being written is not yet among it."""
    found = []
    for path in root.iterdir() if root.is_dir() else ():
        if not path.name.startswith("."):
            with suppress(OSError):  # another process may take it away at any moment
                files = [file.lstat() for file in path.iterdir()] if path.is_dir() else [path.stat()]
                size = sum(file.st_size for file in files)
                told = path / token_cache.MANIFEST
                used = (told if told.is_file() else path).stat().st_mtime
                found.append(CacheEntry(path, size, used))
    yield from sorted(found, key=lambda each: (each.used, each.path.name))


def described(held: CacheEntry) -> dict[str, Any]:
    """Return what a folder of the token cache holds, as plain data."""
    try:
        manifest = json.loads((held.path / token_cache.MANIFEST).read_text(encoding="utf-8"))
        about = {"sources": manifest["names"], **{key: manifest["report"][key] for key in ("examples", "tokens")}}
    except (OSError, ValueError, KeyError, TypeError):
        about = {"sources": [], "examples": 0, "tokens": 0}  # damaged: it is made again where it is asked for
    used = datetime.fromtimestamp(held.used, UTC).isoformat(timespec="seconds")
    return {"key": held.path.name, **about, "bytes": held.size, "used": used}


#: By folder, as this process knows it: when it was last looked through, and the bytes that it held then, with what came since.
_KNOWN: dict[Path, tuple[float, int]] = {}


def make_room(root: Path, most: int, last: str) -> None:
    """Do what `evict` does after `last` was written; a cache that is less than half full is looked through now and then only.

    Others may write to it as well, so it is looked through at least every `PAUSE` seconds in which something is written.
    """
    when, held = _KNOWN.get(root, (-math.inf, 0))
    held += sum(file.stat().st_size for file in (root / last).iterdir()) if (root / last).is_dir() else 0
    if held > most / 2 or time.monotonic() - when > PAUSE:
        evict(root, most, last)
        when, held = time.monotonic(), sum(each.size for each in kept(root))
    _KNOWN[root] = when, held


def evict(root: Path, most: int, last: str = "") -> list[CacheEntry]:
    """Take the least recently used away until no more than `most` bytes stay, or only the one named `last`; return what went.

    A run that reads something keeps it until it ends: its files stay on the disk as long as they are open.
    """
    held = list(kept(root))
    total, gone = sum(each.size for each in held), []
    for each in held:
        if total > most and each.path.name != last:
            token_cache.remove(root, each.path.name)
            total -= each.size
            gone.append(each)
    return gone


def forget(root: Path, sources: Collection[str]) -> None:
    """Take away what was made from any of these sources, by the names that they go by there."""
    for held in kept(root):
        if not {*sources}.isdisjoint(described(held)["sources"]):
            token_cache.remove(root, held.path.name)

"""Files of images, videos and sounds: found, bounded in size, hashed, and kept where rows hold their bytes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_core import DataError, cache_dir

BYTES = {"image": 2**28, "video": 2**32, "audio": 2**30}  #: of the largest file
ARTICLES = {"image": "an image", "video": "a video", "audio": "an audio"}


def located(value: Any, folder: Path, medium: str = "image") -> Path:
    """Return the file of a medium that a row names: a path in `folder`, or bytes, which are kept in the cache.

    Raises ValueError where there is no such file.
    """
    if isinstance(value, Mapping):
        value = value["bytes"] if isinstance(value.get("bytes"), bytes) else value.get("path")
    if isinstance(value, bytes):
        return _kept(value, medium)
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"{ARTICLES[medium]} has neither a path nor bytes")
    if value.startswith(f"data:{medium}/"):
        return _kept(decoded(value), medium)
    if "://" in value and not value.startswith("file://"):
        raise ValueError(f"the {medium} {value[:60]} is not on this disk: fetch it first, and name its file")
    path = folder / value.removeprefix("file://")
    if not path.is_file():
        raise ValueError(f"there is no {medium} {path}")
    return path


def hashed(path: Path, medium: str = "image") -> str:
    """Return the SHA-256 of a file. Raises ValueError where it is too large to be read."""
    if (size := path.stat().st_size) > BYTES[medium]:
        raise ValueError(f"the {medium} {path} has {size >> 20} MiB, more than {BYTES[medium] >> 20}")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def decoded(url: str) -> bytes:
    """Return the bytes in a `data:` URL, none where they are not in base64. Raises ValueError where they are no base64."""
    head, _, data = url.partition(",")
    try:
        return b64decode(data, validate=True) if head.endswith(";base64") else b""
    except ValueError as error:
        raise ValueError(f"what is in {url[:30]}... is not base64") from error


def first_line(error: BaseException) -> str:
    """Return what a decoder says of a damaged file, in short."""
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def _kept(content: bytes, medium: str) -> Path:
    """Return the file in the cache that holds the bytes, named by their hash. It is there as a whole or not at all."""
    if not content:
        raise ValueError(f"{ARTICLES[medium]} has no bytes")
    folder = cache_dir() / f"{medium}s"
    path = folder / hashlib.sha256(content).hexdigest()
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, building = tempfile.mkstemp(dir=folder, prefix=".unfinished-")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(building).replace(path)
        except OSError as error:
            raise DataError(f"the cache of {medium}s cannot be written: {error.strerror}", where=str(folder)) from error
    return path

"""Image files: found, checked and opened. They come from anywhere, so their size is bounded before they are decoded."""

from __future__ import annotations

import hashlib
import io
import math
import os
import tempfile
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from gym_core import DataError, cache_dir

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
PIXELS = 128 * 2**20  #: of the largest image that is decoded; a small file can hold a far larger one
SENT = 32 * 2**20  #: the same, of what strangers send
BYTES = 256 * 2**20  #: of the largest file
DEEP = "IF"  #: first letters of modes of Pillow that are cut off where they become RGB, and not scaled
SIDES = 200  #: most that one side may be longer than the other; processors refuse what is longer still


def located(image: Any, folder: Path) -> Path:
    """Return the file of an image that a row names: a path in `folder`, or bytes, which are kept in the cache.

    Raises ValueError where there is no such file.
    """
    if isinstance(image, Mapping):
        image = image["bytes"] if isinstance(image.get("bytes"), bytes) else image.get("path")
    if isinstance(image, bytes):
        return _kept(image)
    if not isinstance(image, str) or not image or "\0" in image:
        raise ValueError("an image has neither a path nor bytes")
    if image.startswith("data:image/"):
        return _kept(decoded(image))
    if "://" in image and not image.startswith("file://"):
        raise ValueError(f"the image {image[:60]} is not on this disk: fetch it first, and name its file")
    path = folder / image.removeprefix("file://")
    if not path.is_file():
        raise ValueError(f"there is no image {path}")
    return path


def hashed(path: Path) -> str:
    """Return the SHA-256 of an image file. Raises ValueError where it is too large to be read."""
    if (size := path.stat().st_size) > BYTES:
        raise ValueError(f"the image {path} has {size >> 20} MiB, more than {BYTES >> 20}")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def opened(content: bytes, name: str, min_pixels: int, max_pixels: int, largest: int = PIXELS) -> Image.Image:
    """Return an image in RGB, upright as its camera says, with a number of pixels within the bounds, or near them.

    Raises ValueError where the bytes are no image of a known format, a damaged one, or one that is too large.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
            if width * height > largest:
                raise ValueError(f"it has {width} x {height} pixels, more than {largest >> 20} Mi")
            if max(width, height) > SIDES * min(width, height):
                raise ValueError(f"it has {width} x {height} pixels: one side is more than {SIDES} times the other")
            if image.mode[0] in DEEP:
                raise ValueError(
                    "it has more than 8 bits a channel, of which RGB would show but white: scale it to 8 bits"
                )
            upright = ImageOps.exif_transpose(image)
            return _resized(upright.convert("RGB"), min_pixels, max_pixels)
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        if isinstance(error, UnidentifiedImageError):  # which says where in memory it lies
            reason = f"it is none of {', '.join(FORMATS)}"
        raise ValueError(f"the image {name} cannot be read: {reason}") from error


def _resized(image: Image.Image, min_pixels: int, max_pixels: int) -> Image.Image:
    """Return an image with its sides in proportion."""
    pixels = image.width * image.height
    factor = math.sqrt(min(max(pixels, min_pixels), max_pixels) / pixels)
    if factor == 1:
        return image
    return image.resize((max(1, int(image.width * factor)), max(1, int(image.height * factor))))


def decoded(url: str) -> bytes:
    """Return the bytes in a `data:` URL, none where they are not in base64. Raises ValueError where they are no base64."""
    head, _, data = url.partition(",")
    try:
        return b64decode(data, validate=True) if head.endswith(";base64") else b""
    except ValueError as error:
        raise ValueError(f"the image {url[:30]}... is not base64") from error


def _kept(content: bytes) -> Path:
    """Return the file in the cache that holds the bytes, named by their hash. It is there as a whole or not at all."""
    if not content:
        raise ValueError("an image has no bytes")
    folder = cache_dir() / "images"
    path = folder / hashlib.sha256(content).hexdigest()
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, building = tempfile.mkstemp(dir=folder, prefix=".unfinished-")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(building).replace(path)
        except OSError as error:
            raise DataError(f"the cache of images cannot be written: {error.strerror}", where=str(folder)) from error
    return path

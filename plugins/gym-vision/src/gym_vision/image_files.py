"""Images: checked and opened. They come from anywhere, so their size is bounded before they are decoded."""

from __future__ import annotations

import io
import math

from PIL import Image, ImageOps, UnidentifiedImageError

from gym_vision.media_files import first_line

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
PIXELS = 128 * 2**20  #: of the largest image that is decoded; a small file can hold a far larger one
SENT = 32 * 2**20  #: the same, of what strangers send
DEEP = "IF"  #: first letters of modes of Pillow that are cut off where they become RGB, and not scaled
SIDES = 200  #: most that one side may be longer than the other; processors refuse what is longer still


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
            return resized(upright.convert("RGB"), min_pixels, max_pixels)
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        reason = first_line(error)
        if isinstance(error, UnidentifiedImageError):  # which says where in memory it lies
            reason = f"it is none of {', '.join(FORMATS)}"
        raise ValueError(f"the image {name} cannot be read: {reason}") from error


def resized(image: Image.Image, min_pixels: int, max_pixels: int) -> Image.Image:
    """Return an image within the bounds, or near them, with its sides in proportion."""
    pixels = image.width * image.height
    factor = math.sqrt(min(max(pixels, min_pixels), max_pixels) / pixels)
    if factor == 1:
        return image
    return image.resize((max(1, int(image.width * factor)), max(1, int(image.height * factor))))

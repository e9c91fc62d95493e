"""Images of rows: how these name them, where they stand in a text, and what reads them for a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gym_data.chat.loss_masks import Rendered
from gym_data.formats.images import IMAGES, KEYS
from gym_data.rows import MARK

BEYOND = "an image beyond the cutoff"
Image = Mapping[str, str]  #: `path` of its file and `sha256` of what that holds, or the `url` that holds it


class ImageReader(Protocol):
    """What `gym_data.kinds.Images` build: reads images for one model."""

    fingerprint: str
    """Changes with what decides how many tokens an image takes."""
    mark: str
    """What the chat template of the model writes for an image."""
    tokens: frozenset[int]
    """The tokens that stand for parts of images."""
    texts: frozenset[str]
    """How these tokens are written."""

    def found(self, image: Any, folder: Path) -> Image:
        """Return an image that a row names, a path in `folder` or its bytes. Raises ValueError where it is no image."""
        ...

    def sent(self, url: str) -> Image:
        """Return the image that a `data:` URL of a stranger holds, of which no file is made and none read.

        Raises ValueError where it is no such URL, or holds nothing. What it holds is looked at by `written`.
        """
        ...

    def written(self, images: Sequence[Image]) -> list[str]:
        """Return the text that stands in the place of the mark of each of the images of one conversation.

        Raises ValueError where one cannot be read.
        """
        ...

    def inputs(self, images: Sequence[Image], tokens: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[Any]]:
        """Return what the model is given beside the tokens of a sequence with these images, by the names of its `forward`.

        Raises DataError where a file has changed since it was found.
        """
        ...


def placed(rendered: Rendered, reader: ImageReader, written: Sequence[str]) -> tuple[Rendered, int]:
    """Return a text with what is `written` for the images it shows in the places of their marks, and how many it shows.

    It shows the first ones, for it is a conversation or the beginning of one; what is trained on moves along. Raises ValueError
    where it has more marks than there are images, or spells out a token of images, for which there is none.
    """
    mark = reader.mark
    pieces = rendered.text.split(mark)
    count = len(pieces) - 1
    if count > len(written):
        raise ValueError(
            f"it has {len(written)} images for {count} places, `{MARK}` in a message or `{mark}` in a text"
        )
    if spelt := next((each for each in reader.texts if any(each in piece for piece in pieces)), None):
        raise ValueError(f"a text spells out `{spelt}`, which stands for a part of an image")
    text = "".join(part for pair in zip(pieces, [*written[:count], ""], strict=True) for part in pair)

    def moved(place: int) -> int:
        before = rendered.text[:place].count(mark)
        return place + sum(len(image) - len(mark) for image in written[:before])

    spans = tuple((moved(start), moved(end)) for start, end in rendered.spans)
    return Rendered(text, spans, rendered.last), count


def shown(
    images: Sequence[Any], sequences: Sequence[Rendered], reader: ImageReader, folder: Path
) -> list[tuple[list[Image], Rendered]]:
    """Return the sequences of a conversation with what its images, in this folder, take up in them, and which each shows.

    Raises ValueError where an image cannot be read, or the template leaves some out.
    """
    found = [reader.found(image, folder) for image in images]
    written = reader.written(found) if found else []
    texts = [placed(each, reader, written) for each in sequences]
    most = max((count for _, count in texts), default=len(found))
    if most < len(found):
        raise ValueError(f"the chat template leaves out images: it shows {most} of {len(found)}")
    return [(found[:count], text) for text, count in texts]


def with_paths(value: Any, images: Sequence[Any], found: Sequence[Image], key: str = "") -> Any:
    """Return what a row holds, under a key of it, with the whole path of its file in the place of each of its images.

    One that is bytes, or a mapping, is known anywhere; a text is one under a key of images, or in a list of nothing else.
    """
    if isinstance(value, str) and key not in (*IMAGES, *KEYS):
        return value
    paths = (each["path"] for image, each in zip(images, found, strict=True) if image == value)
    if (path := next(paths, None)) is not None:
        return path
    if isinstance(value, Mapping):
        return {name: with_paths(each, images, found, name) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    key = IMAGES[0] if all(each in images for each in value) else ""
    return [with_paths(each, images, found, key) for each in value]


def whole(tokens: npt.NDArray[np.int32], cutoff: int, images: frozenset[int]) -> bool:
    """Whether all tokens of images are within the cutoff."""
    return not np.isin(tokens[cutoff:], list(images)).any()

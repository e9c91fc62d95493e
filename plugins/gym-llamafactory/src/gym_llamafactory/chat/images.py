"""Images in conversations that are written in turns: what they take up in the elements of these, and whether any is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gym_data.chat.loss_masks import Rendered
from gym_data.images import BEYOND, Image, ImageReader, placed
from gym_data.row_reader import Reader, Record
from gym_data.rows import Conversation
from gym_data.tokenizer import Tokens
from gym_llamafactory.chat.turns import Element, Turns


def shown(
    reader: Reader, record: Record, turns: Turns, conversation: Conversation, elements: list[list[Element]]
) -> tuple[list[Image], list[list[Element]]]:
    """Return the images of a conversation, and its elements with what these take up. Raises ValueError where they do not fit."""
    if not (turns.images and conversation.images):
        return [], elements
    folder = reader.opened[record.source].folder
    found = [turns.images.found(image, folder) for image in conversation.images]
    return found, _pictured(elements, turns.images, turns.images.written(found))


def told_of(turns: Turns, images: Sequence[Image]) -> dict[str, Any]:
    """Return what an example is told of images, where any are read."""
    return {"images": images} if turns.images else {}


def beyond(reader: Reader, record: Record, turns: Turns, kept: Sequence[int] | Tokens, whole: Sequence[int]) -> bool:
    """Whether an image in `whole` is not in what is kept, which is counted."""
    cut = turns.images is not None and _parts(kept, turns.images) < _parts(whole, turns.images)
    if cut:
        reader.tallies[record.source].dropped[BEYOND] += 1
    return cut


def _pictured(elements: list[list[Element]], reader: ImageReader, written: Sequence[str]) -> list[list[Element]]:
    """Return elements in which the text of each image stands in the place of its mark. Raises ValueError for another count."""
    counts = sum(each.count(reader.mark) for message in elements for each in message if isinstance(each, str))
    if counts != len(written):
        raise ValueError(f"the template shows {counts} of {len(written)} images")
    left = list(written)
    found = []
    for message in elements:
        whole: list[Element] = []
        for each in message:
            if isinstance(each, str):
                rendered, count = placed(Rendered(each, ()), reader, left)
                each, left = rendered.text, left[count:]
            whole.append(each)
        found.append(whole)
    return found


def _parts(tokens: Sequence[int] | Tokens, images: ImageReader) -> int:
    """Return how many tokens stand for parts of images."""
    return sum(token in images.tokens for token in np.asarray(tokens).tolist())

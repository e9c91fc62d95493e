"""Media of conversations that are written in turns: what they take up in the elements of these, and whether any is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gym_data.chat.loss_masks import Rendered
from gym_data.media import BEYOND, MediaReader, Medium, placed
from gym_data.row_reader import Reader, Record
from gym_data.rows import Conversation
from gym_data.tokenizer import Tokens
from gym_llamafactory.chat.turns import Element, Turns


def shown(
    reader: Reader, record: Record, turns: Turns, conversation: Conversation, elements: list[list[Element]]
) -> tuple[list[Medium], list[list[Element]]]:
    """Return the media of a conversation, and its elements with what these take up. Raises ValueError where they do not fit."""
    if not (turns.media and conversation.media):
        return [], elements
    folder = reader.opened[record.source].folder
    found = [turns.media.found(each, folder) for each in conversation.media]
    return found, _placed(elements, turns.media, found)


def told_of(turns: Turns, media: Sequence[Medium]) -> dict[str, Any]:
    """Return what an example is told of media, where any are read."""
    return {"media": media} if turns.media else {}


def beyond(reader: Reader, record: Record, turns: Turns, kept: Sequence[int] | Tokens, whole: Sequence[int]) -> bool:
    """Whether a part of a medium in `whole` is not in what is kept, which is counted."""
    cut = turns.media is not None and _parts(kept, turns.media) < _parts(whole, turns.media)
    if cut:
        reader.tallies[record.source].dropped[BEYOND] += 1
    return cut


def _placed(elements: list[list[Element]], reader: MediaReader, found: Sequence[Medium]) -> list[list[Element]]:
    """Return elements in which the text of each medium stands in the place of its mark. Raises ValueError for another count."""
    left = list(zip(found, reader.written(found), strict=True))
    every: list[list[Element]] = []
    for message in elements:
        whole: list[Element] = []
        for each in message:
            if isinstance(each, str):
                rendered, those = placed(
                    Rendered(each, ()), reader, [one for one, _ in left], [text for _, text in left]
                )
                each = rendered.text
                left = [one for at, one in enumerate(left) if at not in those]
            whole.append(each)
        every.append(whole)
    if left:
        raise ValueError(f"the template shows {len(found) - len(left)} of {len(found)} {left[0][0]['medium']}s")
    return every


def _parts(tokens: Sequence[int] | Tokens, media: MediaReader) -> int:
    """Return how many tokens stand for parts of media."""
    return sum(token in media.tokens for token in np.asarray(tokens).tolist())

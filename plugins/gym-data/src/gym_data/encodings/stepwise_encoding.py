"""From answers in steps to sequences of tokens: what is trained on of each are the tokens that end its labelled steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gym_data.chat.loss_masks import Rendered
from gym_data.encodings.conversation_encoding import Piece, cut, with_system
from gym_data.media import MediaReader, shown
from gym_data.row_reader import Reader
from gym_data.rows import Stepwise, judged_steps
from gym_data.tokenizer import Tokenizer


def encode_steps(reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield answers within the cutoff, with the labels of the steps that are; those without one are counted and left out."""
    media = tokenizer.media
    for record in reader.records():
        row, about = record.row, dict[str, Any]()
        assert isinstance(row, Stepwise)
        messages = with_system(row.prompt.messages, reader.config.system)
        folder = reader.opened[record.source].folder
        asked = messages, row.prompt.tools, row.steps, row.separator, row.prompt.values
        try:
            tokens, ends = tokenizer.steps(*asked, partial(_with_media, row, media, folder, about))
        except ValueError as error:
            reader.refused(record, error)
            continue
        judged = [label is not None for label in row.labels]
        labels = [label for label in row.labels if label is not None]
        trained = np.zeros(len(tokens), dtype=bool)
        trained[ends[judged]] = True
        whole = Piece(tokens, trained, record.source, record.number, 0, record.times, record.key)
        for piece in cut(whole, reader, media):
            kept = labels[: int(piece.trained.sum())]
            yield replace(piece, about={"labels": kept, **about}, remarks=judged_steps(kept))


def _with_media(
    row: Stepwise, media: MediaReader | None, folder: Path, about: dict[str, Any], text: Rendered
) -> Rendered:
    """Return the text of a prompt with what its media take up in it, which are noted in `about`."""
    if media is not None:
        ((about["media"], text),) = shown(row.prompt.media, [text], media, folder)
    return text

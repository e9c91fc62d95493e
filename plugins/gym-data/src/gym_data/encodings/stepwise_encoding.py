"""From answers in steps to sequences of tokens: what is trained on of each are the tokens that end its labelled steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gym_data.encodings.conversation_encoding import Piece, cut, with_system
from gym_data.row_reader import Reader
from gym_data.rows import Stepwise, judged_steps
from gym_data.tokenizer import Tokenizer


def encode_steps(reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield answers within the cutoff, with the labels of the steps that are; those without one are counted and left out."""
    for record in reader.records():
        row = record.row
        assert isinstance(row, Stepwise)
        messages = with_system(row.prompt.messages, reader.config.system)
        try:
            tokens, ends = tokenizer.steps(messages, row.prompt.tools, row.steps, row.separator, row.prompt.values)
        except ValueError as error:
            reader.refused(record, error)
            continue
        judged = [label is not None for label in row.labels]
        labels = [label for label in row.labels if label is not None]
        trained = np.zeros(len(tokens), dtype=bool)
        trained[ends[judged]] = True
        for piece in cut(Piece(tokens, trained, record.source, record.number, 0, record.times, record.key), reader):
            kept = labels[: int(piece.trained.sum())]
            yield replace(piece, about={"labels": kept}, remarks=judged_steps(kept))

"""A shape of rows of somebody else: documents in capitals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gym_data.encodings.conversation_encoding import Piece
from gym_data.examples import Example
from gym_data.formats import Text
from gym_data.row_reader import Reader
from gym_data.rows import Text as Document
from gym_data.shapes import Shape
from gym_data.tokenizer import Tokenizer


class Shouted(Example):
    """A sample of theirs."""


def shouted(reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield documents in capitals."""
    for record in reader.records():
        assert isinstance(record.row, Document)
        tokens = np.asarray(tokenizer.encode(record.row.text.upper()), dtype=np.int32)
        yield Piece(tokens, np.arange(len(tokens)) > 0, record.source, record.number, 0, record.times, record.key, {})


SHAPE = Shape(
    rows=(Document,),
    encode=shouted,
    example=Shouted,
    detect=lambda rows: Text(text="shout") if all("shout" in row for row in rows) else None,
    told_by="name: text, text: noise",
    shown=lambda question, answer, wrong: {"shout": question},
)
NOTHING = "nothing"

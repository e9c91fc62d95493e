"""Rows of texts that belong together: from what a format reads to samples. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gym_data.encodings.conversation_encoding import BATCH, TOO_LONG, Piece, batches
from gym_data.row_reader import Reader
from gym_data.shapes import Shape
from gym_data.tokenizer import Tokenizer
from gym_data.tokenizer_files import tokens_around
from gym_embedding.format_reader import detect
from gym_embedding.rows import RelatedTexts
from gym_embedding.samples import TextsSample, ends


def encode_related_texts(reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield the texts of rows as the tokenizer of the model is called, with what it puts before and behind each.

    A text that is longer than the cutoff loses the end of what is between these. Whole rows are left out with `overlong: drop`.
    """
    before, behind = tokens_around(tokenizer.path)
    room = max(1, reader.config.cutoff - len(before) - len(behind))
    for batch in batches(reader.records(), BATCH):
        texts = [record.row.texts for record in batch if isinstance(record.row, RelatedTexts)]
        encoded = iter(tokenizer.encode_batch([text for several in texts for text in several]))
        for record, several in zip(batch, texts, strict=True):
            tally = reader.tallies[record.source]
            tally.spelt += any(map(tokenizer.splits, several))
            own = [next(encoded) for _ in several]
            if not all(own):
                reader.bad(record.source, record.number, ValueError("a text of it has no tokens"), "the tokenizer")
                continue
            if any(len(ids) > room for ids in own):
                if reader.config.overlong == "drop":
                    tally.dropped[TOO_LONG] += 1
                    continue
                tally.truncated += 1
            whole = [[*before, *ids[:room], *behind] for ids in own]
            lengths = [len(ids) for ids in whole]
            assert isinstance(record.row, RelatedTexts)
            about = {"lengths": lengths, "score": record.row.score}
            tokens = np.asarray([token for ids in whole for token in ids], dtype=np.int32)
            yield Piece(tokens, ends(lengths), record.source, record.number, 0, record.times, record.key, about)


def shown(question: str, answer: str, wrong: str) -> Mapping[str, Any]:
    """Return a row in which an answer belongs to a question and another does not."""
    return {"anchor": question, "positive": answer, "negative": wrong}


RELATED_TEXTS = Shape(
    rows=(RelatedTexts,),
    encode=encode_related_texts,
    example=TextsSample,
    detect=detect,
    told_by="name: related-texts, anchor: question, positive: answer",
    shown=shown,
)

"""Reads rows of texts that belong together, and tells their columns by the names that datasets have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gym_data.formats.media import no_media
from gym_data.formats.parsing import column, filled
from gym_embedding.formats import RelatedTextsFormat
from gym_embedding.rows import RelatedTexts

#: Columns of two texts, as datasets for sentence-transformers, FlagEmbedding and question answering name them.
PAIRS = (
    ("anchor", "positive"),
    ("query", "positive"),
    ("query", "pos"),
    ("query", "document"),
    ("query", "passage"),
    ("question", "answer"),
    ("question", "context"),
    ("sentence1", "sentence2"),
    ("sentence_A", "sentence_B"),
    ("text1", "text2"),
)
SCORES = ("score", "similarity_score", "relatedness_score", "similarity", "label")
NEGATIVE = ("negative", "neg")


class RelatedTextsReader:
    """Makes texts that belong together of a row."""

    def __init__(self, config: RelatedTextsFormat) -> None:
        """Hold the column names."""
        self.config = config

    def convert(self, row: Mapping[str, Any]) -> RelatedTexts:
        """Return the texts and how much the first two belong together. Raises ValueError where that is not what the row holds."""
        config, score = self.config, column(row, self.config.score)
        no_media(row)
        anchor = filled(row.get(config.anchor), f"the anchor (column `{config.anchor}`)")
        positive = filled(_single(row.get(config.positive)), f"the positive (column `{config.positive}`)")
        negatives = [filled(each, "a negative") for each in self._negatives(row)]
        if score is not None:
            if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
                raise ValueError(f"column `{config.score}` holds no number")
            if negatives:
                raise ValueError("it has a score and negatives, and a score is of two texts")
        documents = [config.document_prompt + each for each in (positive, *negatives)]
        return RelatedTexts((self._prompt(row) + anchor, *documents), None if score is None else float(score))

    def _prompt(self, row: Mapping[str, Any]) -> str:
        instruction = column(row, self.config.instruction)
        return (
            f"Instruct: {filled(instruction, 'the instruction')}\nQuery:" if instruction else self.config.query_prompt
        )

    def _negatives(self, row: Mapping[str, Any]) -> Iterator[Any]:
        names = self.config.negatives or [name for name in row if str(name).startswith(NEGATIVE)]
        for name in names:
            value = row.get(name)
            if isinstance(value, list):
                yield from value
            elif value is not None:  # tables fill up with null where a row has fewer
                yield value


def _single(value: Any) -> Any:
    """Return the one text of a list of one, which some datasets have for a positive."""
    if isinstance(value, list) and len(value) > 1:
        raise ValueError(f"it has {len(value)} positives; write a row for each")
    return value[0] if isinstance(value, list) and value else value


def detect(rows: Sequence[Mapping[str, Any]]) -> RelatedTextsFormat | None:
    """Return the format that the columns of the first rows have; None when they have none that is known."""
    columns = {name for row in rows for name in row}
    found = next((pair for pair in PAIRS if columns.issuperset(pair)), None)
    if found is None:
        return None
    numbers = {name for name in columns if all(isinstance(row.get(name), int | float) for row in rows)}
    score = next((name for name in SCORES if name in numbers), None)
    return RelatedTextsFormat(anchor=found[0], positive=found[1], score=score)

"""Reads rows of texts that belong together, and tells their columns by the names that datasets have."""

from __future__ import annotations

import math
import re
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
    ("query", "answer"),
    ("question", "answer"),
    ("question", "context"),
)
#: Columns of two texts that need not belong together: whether they do stands in another.
COMPARED = (
    ("sentence1", "sentence2"),
    ("sentence_A", "sentence_B"),
    ("text1", "text2"),
)
SCORES = ("score", "similarity_score", "relatedness_score", "similarity", "label")
#: Such as `negative`, `negative_1`, `negatives`, `neg`; not `negative_id` nor `neg_scores`, which say something of these.
NEGATIVE = re.compile(r"(neg|negative)s?(?![a-z])(?!.*(id|ids|idx|index|scores?|labels?|titles?|urls?)$)")


class RelatedTextsReader:
    """Makes texts that belong together of a row."""

    def __init__(self, config: RelatedTextsFormat) -> None:
        """Hold the column names."""
        self.config = config

    def convert(self, row: Mapping[str, Any]) -> RelatedTexts:
        """Return the texts and how much the first two belong together. Raises ValueError where that is not what the row holds."""
        config = self.config
        no_media(row)
        anchor = filled(row.get(config.anchor), f"the anchor (column `{config.anchor}`)")
        positive = filled(_single(row.get(config.positive)), f"the positive (column `{config.positive}`)")
        negatives = [filled(each, "a negative") for each in self._negatives(row)]
        score = _number(column(row, config.score), f"column `{config.score}`")
        if score is not None and negatives:
            raise ValueError("it has a score and negatives, and a score is of two texts")
        documents = [config.document_prompt + each for each in (positive, *negatives)]
        return RelatedTexts((self._prompt(row) + anchor, *documents), score)

    def _prompt(self, row: Mapping[str, Any]) -> str:
        instruction = column(row, self.config.instruction)
        return (
            f"Instruct: {filled(instruction, 'the instruction')}\nQuery:" if instruction else self.config.query_prompt
        )

    def _negatives(self, row: Mapping[str, Any]) -> Iterator[Any]:
        names = self.config.negatives or [name for name in row if NEGATIVE.match(str(name))]
        for name in names:
            value = row.get(name)
            for each in value if isinstance(value, list) else [value]:
                if each is not None and each != "":  # tables fill up with these where a row has fewer
                    yield each


def _single(value: Any) -> Any:
    """Return the one text of a list of one, which some datasets have for a positive."""
    if isinstance(value, list) and len(value) > 1:
        raise ValueError(f"it has {len(value)} positives; write a row for each")
    return value[0] if isinstance(value, list) and value else value


def _number(value: Any, what: str) -> float | None:
    """Return a number, which CSV has as text. Raises ValueError where it is none."""
    if value is None:
        return None
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{what} holds no number but {str(value)[:40]!r}")
    return found


def _numeric(value: Any) -> bool:
    try:
        return value is None or _number(value, "") is not None
    except ValueError:
        return False


def detect(rows: Sequence[Mapping[str, Any]]) -> RelatedTextsFormat | None:
    """Return the format that the columns of the first rows have; None when they have none that is known."""
    columns = {name for row in rows for name in row}
    found = next((pair for pair in (*PAIRS, *COMPARED) if columns.issuperset(pair)), None)
    if found is None:
        return None
    scores = [name for name in SCORES if name in columns]
    numbers = (name for name in scores if all(_numeric(row.get(name)) for row in rows))
    # Labels in words are no reason to take all that are compared for texts that belong together.
    score = next(numbers, scores[0] if scores and found in COMPARED else None)
    return RelatedTextsFormat(anchor=found[0], positive=found[1], score=score)

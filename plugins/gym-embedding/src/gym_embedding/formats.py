"""The format of rows of texts that belong together, as a recipe sees it. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gym_data.kinds import Format


class RelatedTextsFormat(Format):
    """Texts that belong together: an anchor, its positive and perhaps hard negatives, or two texts and a score."""

    target: ClassVar[str] = "gym_embedding.format_reader:RelatedTextsReader"
    example: ClassVar[Mapping[str, Any]] = {
        "anchor": "What is the capital of France?",
        "positive": "Paris is the capital of France.",
        "negative": "Berlin is the capital of Germany.",
    }

    anchor: str = "anchor"
    """Column of the text that is asked with, such as a query."""
    positive: str = "positive"
    """Column of the text that belongs to it, such as a document that answers it."""
    negatives: tuple[str, ...] = ()
    """Columns of texts that do not belong to it, each a text or a list; by default `negative`, `negative_1`, `negatives`,
    `neg` and such."""
    score: str | None = "score"
    """Column of how much both texts belong together, a number, for `loss: cosent` and `cosine`."""
    instruction: str | None = "instruction"
    """Column of the task that an anchor is part of, put before it as Qwen3-Embedding has it: `Instruct: ...`, a line break and
    `Query:`."""
    query_prompt: str = ""
    """Text put before each anchor that has no instruction (`prompts` in sentence-transformers)."""
    document_prompt: str = ""
    """Text put before each positive and negative."""

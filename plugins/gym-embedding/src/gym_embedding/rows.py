"""What a row of texts that belong together means."""

from __future__ import annotations

from dataclasses import dataclass

from gym_data.rows import Row


@dataclass(frozen=True)
class RelatedTexts(Row):
    """An anchor and others."""

    texts: tuple[str, ...]  #: the anchor, its positive, and texts that do not belong to it
    score: float | None  #: how much the first two belong together; None where the row shows a positive

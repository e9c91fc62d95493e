"""Samples of texts that belong together, each text a sequence of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gym_data.examples import Several


@dataclass(frozen=True)
class TextsSample(Several):
    """The tokens of an anchor, its positive and its negatives, one after another; the last token of each text is marked."""

    lengths: Sequence[int]  #: tokens of each text
    score: float | None = None  #: how much the first two belong together

    @classmethod
    def longest(cls, id: str, length: int) -> TextsSample:
        """Return two texts of that length."""
        lengths = (length, length)
        return cls(id, np.zeros(2 * length, dtype=np.int32), ends(lengths), lengths)

    @property
    def segments(self) -> Sequence[tuple[int, int | None]]:
        """Return the texts, none of which continues another."""
        return [(length, None) for length in self.lengths]

    @property
    def parts(self) -> Sequence[tuple[str, slice]]:
        """Return the texts, by what they are."""
        stops = np.cumsum(self.lengths).tolist()
        count = len(self.lengths) - 2
        names = ["anchor", "positive" if self.score is None else "other"]
        names += [f"negative {number}" if count > 1 else "negative" for number in range(1, count + 1)]
        return [(name, slice(stop - size, stop)) for name, stop, size in zip(names, stops, self.lengths, strict=True)]

    @property
    def judgement(self) -> str:
        """Say the score."""
        return "" if self.score is None else f"score {self.score:g}"


@dataclass(frozen=True)
class JudgedTexts(TextsSample):
    """Texts whose loss is known from all embeddings of their step, and what it asks of their own."""

    gradient: npt.NDArray[np.float32] = field(
        kw_only=True
    )  #: of the loss of the step, by the state of each text [texts, dim]
    loss: float = field(kw_only=True)
    found: float = field(kw_only=True)  #: 1 where the positive is the closest, else 0


def ends(lengths: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return which tokens are the last of a text, `[tokens]` bool."""
    marked = np.zeros(sum(lengths), dtype=np.bool_)
    marked[np.cumsum(lengths) - 1] = True
    return marked

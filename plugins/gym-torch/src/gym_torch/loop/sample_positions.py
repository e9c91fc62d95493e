"""Whether a model has a position for every token of its samples, found before a step is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from gym_core import DataError
from gym_data.examples import deepest
from gym_torch.batch import apart
from gym_torch.console import warn
from gym_torch.model import positions as of_model
from gym_torch.packing import Ints
from gym_torch.source import E_co, Examples


class SamplePositions:
    """Looks at the lengths of samples, and warns once."""

    def __init__(self, model: PreTrainedModel, by: str) -> None:
        """Look for a model at what `by` prepared."""
        self.trained, self.table, self.by = of_model.trained(model), of_model.table(model), by
        self.warned = False

    def check(self, examples: Examples, positions: Callable[[Ints], npt.NDArray[np.integer]] | None = None) -> None:
        """Raise DataError where samples go beyond a table of positions, and warn where beyond those a model was trained on.

        `positions` says how many samples of some numbers take; without it they are read. Tokens are counted along what each
        segment continues: two answers to one prompt begin at the same position.
        """
        trained = self.trained
        if trained is None or (self.warned and self.table is None):
            return
        long = np.flatnonzero(np.asarray(examples.lengths) > trained)
        most = positions(long) if positions else read_positions(examples, long)
        longer = int((most > trained).sum())
        if not longer:
            return
        found = (
            f"{longer:,} of {len(examples):,} samples are longer than the {trained:,} positions of the model, "
            f"one has {most.max():,} tokens"
        )
        if self.table is not None:
            raise DataError(found, where=self.by, key="data.cutoff", fix=f"set `data: {{cutoff: {trained}}}`")
        warn(f"{found}: set `data.cutoff`, or `model.rope_scaling` where it has rotary positions")
        self.warned = True


@runtime_checkable
class PlacedExamples(Examples[E_co], Protocol[E_co]):
    """Samples that know how many positions they take."""

    def positions(self, numbers: Ints, /) -> npt.NDArray[np.integer]:
        """Return how many positions the samples of these numbers take, `[numbers]`."""
        ...


def read_positions(examples: Examples, numbers: Ints) -> npt.NDArray[np.integer]:
    """Return how many positions samples take, each of which is read."""
    found = []
    for number in numbers.tolist():
        pieces, prefixes = apart([examples[number]])
        found.append(deepest(list(zip([len(piece.tokens) for piece in pieces], prefixes, strict=True))))
    return np.asarray(found, dtype=np.int64)

"""Whether a model has a position for every token of its samples, found before a step is made."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedModel

from gym_core import DataError
from gym_torch.batch import apart
from gym_torch.console import warn
from gym_torch.model import positions
from gym_torch.segment_spans import Spans
from gym_torch.source import Examples


class SamplePositions:
    """Looks at the lengths of samples, and warns once."""

    def __init__(self, model: PreTrainedModel, by: str) -> None:
        """Look for a model at what `by` prepared."""
        self.trained, self.table, self.by = positions.trained(model), positions.table(model), by
        self.warned = False

    def check(self, examples: Examples) -> None:
        """Raise DataError where samples go beyond a table of positions, and warn where beyond those a model was trained on.

        Tokens are counted along what each segment continues: two answers to one prompt begin at the same position.
        """
        trained = self.trained
        if trained is None or (self.warned and self.table is None):
            return
        most = [_positions(examples, int(number)) for number in np.flatnonzero(examples.lengths > trained)]
        longer = sum(each > trained for each in most)
        if not longer:
            return
        found = (
            f"{longer:,} of {len(examples):,} samples are longer than the {trained:,} positions of the model, "
            f"one has {max(most):,} tokens"
        )
        if self.table is not None:
            raise DataError(found, where=self.by, key="data.cutoff", fix=f"set `data: {{cutoff: {trained}}}`")
        warn(f"{found}: set `data.cutoff`, or `model.rope_scaling` where it has rotary positions")
        self.warned = True


def _positions(examples: Examples, number: int) -> int:
    pieces, prefixes = apart([examples[number]])
    return int(Spans([len(piece.tokens) for piece in pieces], prefixes).positions.max()) + 1

"""What adapters meet: models of several architectures, those with windows apart, and texts."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedModel

from gym_testkit.architectures import FAMILIES, VOCABULARY, build
from gym_torch.batch import Piece

WINDOWED = [name for name, options in FAMILIES.items() if "sliding_window" in options]
FULL = [name for name in FAMILIES if name not in WINDOWED]  #: those that attend to everything before


def family(name: str) -> PreTrainedModel:
    """Return a model of this architecture, always the same one."""
    return build(name, None)


def samples(lengths: tuple[int, ...] = (13, 1, 4, 25, 9), share: float = 0.6) -> list[Piece]:
    """Return random texts of these lengths, of which a share is trained."""
    random = np.random.default_rng(0)
    return [
        Piece(
            f"s{number}",
            random.integers(3, VOCABULARY, length).astype(np.int32),
            random.random(length) < share,
        )
        for number, length in enumerate(lengths)
    ]

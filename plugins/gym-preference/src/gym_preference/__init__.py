"""gym-preference: learning from preferences. Configuration alone; nothing heavy is imported."""

from __future__ import annotations

from typing import ClassVar

from gym_preference.config import Pairwise, Preferring, Referenced

__version__ = "0.1.0"
__all__ = ["DPO", "Pairwise", "Preferring", "Referenced"]


class DPO(Referenced, Pairwise):
    """Direct preference optimization: the chosen answer gains on the rejected one, measured against a reference."""

    paper: ClassVar[str] = "arXiv:2305.18290"
    loss: ClassVar[str] = "gym_preference.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.oracle:dpo"

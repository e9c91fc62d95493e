"""gym-unlearn: making a model forget some of what it learnt, and keep the rest. Configuration alone: imports nothing heavy."""

from __future__ import annotations

from gym_unlearn.config import NPO, RMU, GradDiff, GradientAscent, Retaining, SimNPO, Unlearning
from gym_unlearn.sources import Forget, Retain

__version__ = "0.1.0"
__all__ = ["NPO", "RMU", "Forget", "GradDiff", "GradientAscent", "Retain", "Retaining", "SimNPO", "Unlearning"]

"""gym-gspo: group sequence policy optimization. Configuration alone; the code that runs is in `objective.py`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from gym_rl import Clipping

__version__ = "0.1.0"
__all__ = ["GSPO", "GSPOToken"]


class GSPO(Clipping):
    """Clips the ratio of whole answers, the geometric mean over their tokens, because whole answers are rewarded."""

    objective: ClassVar[str] = "gym_gspo.objective:GSPOLoss"
    advantage: ClassVar[str] = "gym_rl.formulas.advantages:normalized"

    clip_low: Annotated[float, Field(ge=0, le=1)] = 3e-4
    """How far below 1 the ratio may push; the ratios of answers are far closer to 1 than those of tokens."""
    clip_high: Annotated[float, Field(ge=0)] = 4e-4
    """How far above 1 the ratio may push."""
    mini_batches: PositiveInt = 4
    """Optimizer steps for the answers of one round."""


class GSPOToken(GSPO):
    """GSPO with an advantage for each token; with one for each answer, as here, it is GSPO in value and gradient."""

    objective: ClassVar[str] = "gym_gspo.objective:GSPOTokenLoss"

"""gym-gspo: group sequence policy optimization. Configuration alone; the code that runs is in `objective.py`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from gym_rl import ClippedPolicyGradient, GroupRelative

__version__ = "0.1.0"
__all__ = ["GSPO", "GSPOToken"]


class GSPO(GroupRelative, ClippedPolicyGradient):
    """Group sequence policy optimization: clips the sequence ratio, the geometric mean of the token ratios of a completion."""

    objective: ClassVar[str] = "gym_gspo.objective:GSPOLoss"

    epsilon: Annotated[float, Field(ge=0, le=1)] = 3e-4
    """Clip range: how far below 1 the sequence ratio counts. Sequence ratios are much closer to 1 than those of tokens."""
    epsilon_high: Annotated[float | None, Field(ge=0)] = 4e-4
    """Upper clip range: how far above 1 the sequence ratio counts; unset, `epsilon`."""
    num_mini_batches: PositiveInt = 4
    """Mini-batches: optimizer steps for the completions of one round."""


class GSPOToken(GSPO):
    """GSPO-token: GSPO with an advantage for each token; with one for each completion, as here, it equals GSPO."""

    objective: ClassVar[str] = "gym_gspo.objective:GSPOTokenLoss"

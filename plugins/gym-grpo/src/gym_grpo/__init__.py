"""gym-grpo: GRPO and what came of it. Configuration alone; the code that runs is in `objective.py`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_rl import Clipping, PolicyGradient

__version__ = "0.1.0"
__all__ = ["CISPO", "GRPO", "DrGRPO"]


class GRPO(Clipping):
    """Group-relative policy optimization: an answer is as good as it is better than the others to its prompt."""

    paper: ClassVar[str] = "arXiv:2402.03300"
    objective: ClassVar[str] = "gym_grpo.objective:GRPOLoss"
    advantage: ClassVar[str] = "gym_rl.advantages:normalized"


class DrGRPO(Clipping):
    """GRPO done right: no division by the deviation of rewards or by the length of answers, which both bias it."""

    paper: ClassVar[str] = "arXiv:2503.20783"
    objective: ClassVar[str] = "gym_grpo.objective:DrGRPOLoss"
    advantage: ClassVar[str] = "gym_rl.advantages:centred"


class CISPO(PolicyGradient):
    """Clips the weight of a token instead of its loss, so that no token loses its gradient."""

    paper: ClassVar[str] = "arXiv:2506.13585"
    objective: ClassVar[str] = "gym_grpo.objective:CISPOLoss"
    advantage: ClassVar[str] = "gym_rl.advantages:normalized"

    cap: Annotated[float, Field(gt=0)] = 5.0
    """Largest weight: the ratio itself, not what is added to 1."""

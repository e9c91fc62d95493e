"""gym-rl: learning from rewards. What a recipe names stands here and in `gym_rl.rewards`; nothing heavy is imported."""

from __future__ import annotations

from typing import ClassVar

from gym_rl.config import Clipping, PolicyGradient
from gym_rl.engine import Engine, Local
from gym_rl.reward import Answer, Reward

__version__ = "0.1.0"
__all__ = ["RLOO", "Answer", "Clipping", "Engine", "Local", "PolicyGradient", "Reward"]


class RLOO(PolicyGradient):
    """REINFORCE with the other answers to the same prompt as its baseline."""

    paper: ClassVar[str] = "arXiv:2402.14740"
    objective: ClassVar[str] = "gym_rl.reinforce:Reinforce"
    advantage: ClassVar[str] = "gym_rl.advantages:leave_one_out"

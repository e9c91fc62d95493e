"""gym-rl: learning from rewards. What a recipe names stands here and in `gym_rl.rewards`; nothing heavy is imported."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gym_rl.config import Clipping, PolicyGradient
from gym_rl.reward import Answer, Reward

__version__ = "0.1.0"
__all__ = ["RLOO", "Answer", "Clipping", "PolicyGradient", "ReinforcePP", "ReinforcePPBaseline", "Reward"]


class RLOO(PolicyGradient):
    """REINFORCE with the other answers to the same prompt as its baseline."""

    paper: ClassVar[str] = "arXiv:2402.14740"
    objective: ClassVar[str] = "gym_rl.reinforce:Reinforce"
    advantage: ClassVar[str] = "gym_rl.advantages:leave_one_out"

    kl: Literal["k2", "k3", "k3_is", "reward"] = "reward"
    """How a departure from the reference costs: `reward` takes its KL from the reward of the answer."""


class ReinforcePP(Clipping):
    """REINFORCE++: every token earns the rewards that follow it, compared with all tokens of the round; no groups, no critic."""

    paper: ClassVar[str] = "arXiv:2501.03262"
    objective: ClassVar[str] = "gym_rl.clipped:ClippedTokens"
    credit: ClassVar[str] = "gym_rl.credit:to_go"

    group_size: Annotated[int, Field(ge=1)] = 1
    """Answers to each prompt."""
    kl: Literal["k2", "k3", "k3_is", "reward"] = "reward"
    """How a departure from the reference costs: `reward` takes the KL of each token from its reward."""


class ReinforcePPBaseline(Clipping):
    """REINFORCE++ with the mean of a group as its baseline: fit for rewards that compare answers to one prompt."""

    paper: ClassVar[str] = "arXiv:2501.03262"
    objective: ClassVar[str] = "gym_rl.clipped:ClippedTokens"
    advantage: ClassVar[str] = "gym_rl.advantages:group_then_batch"

    kl: Literal["k2", "k3", "k3_is", "reward"] = "k2"
    """How a departure from the reference costs: by an estimator as a term of the loss, or in the `reward`."""

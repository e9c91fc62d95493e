"""gym-rl: learning from rewards. What a recipe names stands here and in `gym_rl.reward_models`; nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from gym_rl.config import Clipping, PolicyGradient
from gym_rl.rollout_engine import Engine, Local
from gym_torch.config import Further

__version__ = "0.1.0"
__all__ = [
    "PPO",
    "RLOO",
    "Clipping",
    "Engine",
    "Local",
    "PolicyGradient",
    "ReinforcePP",
    "ReinforcePPBaseline",
]


class RLOO(PolicyGradient):
    """REINFORCE with the other answers to the same prompt as its baseline."""

    objective: ClassVar[str] = "gym_rl.reinforce:Reinforce"
    advantage: ClassVar[str] = "gym_rl.formulas.advantages:leave_one_out"

    kl: Literal["k2", "k3", "k3_is", "reward"] = "reward"
    """How a departure from the reference costs: `reward` takes its KL from the reward of the answer."""


class ReinforcePP(Clipping):
    """REINFORCE++: every token earns the rewards that follow it, compared with all tokens of the round; no groups, no critic."""

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedTokens"
    credit: ClassVar[str] = "gym_rl.rollouts.credit_assignment:to_go"

    group_size: Annotated[int, Field(ge=1)] = 1
    """Answers to each prompt."""
    kl: Literal["k2", "k3", "k3_is", "reward"] = "reward"
    """How a departure from the reference costs: `reward` takes the KL of each token from its reward."""


class ReinforcePPBaseline(Clipping):
    """REINFORCE++ with the mean of a group as its baseline: fit for rewards that compare answers to one prompt."""

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedTokens"
    advantage: ClassVar[str] = "gym_rl.formulas.advantages:group_then_batch"

    kl: Literal["k2", "k3", "k3_is", "reward"] = "k2"
    """How a departure from the reference costs: by an estimator as a term of the loss, or in the `reward`."""


class PPO(Clipping):
    """Proximal policy optimization: a token is as good as it is better than a critic expected, which learns as well."""

    target: ClassVar[str] = "gym_rl.ppo:PPOTrainer"
    objective: ClassVar[str] = "gym_rl.ppo:PPOLoss"
    credit: ClassVar[str] = "gym_rl.ppo:estimated"

    group_size: Annotated[int, Field(ge=1)] = 1
    """Answers to each prompt. The critic makes a group unnecessary, but a prompt is computed once for all of it."""
    kl: Literal["k2", "k3", "k3_is", "reward"] = "reward"
    """How a departure from the reference costs: `reward` takes the KL of each token from its reward."""
    mini_batches: PositiveInt = 4
    """Optimizer steps for the answers of one round."""
    critic: str | None = None
    """Model that learns what to expect: a family, a folder or a Hub id, perhaps with a value head beside its weights. It is
    loaded beside the policy and trained with the same adapter. Without one, a value head on the policy's own states."""
    value_coefficient: Annotated[float, Field(ge=0)] = 0.5
    """What the critic's loss counts beside the policy's."""
    value_clip: Annotated[float, Field(gt=0)] = 0.2
    """How far the critic may move from what it said when the round began."""
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0
    """What a reward counts one token earlier (gamma)."""
    decay: Annotated[float, Field(ge=0, le=1)] = 0.95
    """How far the surprise at a token reaches back (lambda): 0 to itself alone, 1 to all tokens before it alike."""

    def further(self) -> Sequence[Further]:
        """Add a critic of its own."""
        return (*super().further(), *((Further(self.critic, trains=True),) if self.critic else ()))

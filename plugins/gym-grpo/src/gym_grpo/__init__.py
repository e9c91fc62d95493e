"""gym-grpo: GRPO and what came of it. Configuration alone; the code that runs is in `objective.py`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from gym_rewards import Overlong, Reward
from gym_rl import Clipping, PolicyGradient

__version__ = "0.1.0"
__all__ = ["BNPO", "CISPO", "DAPO", "GRPO", "DrGRPO"]


class GRPO(Clipping):
    """Group-relative policy optimization: an answer is as good as it is better than the others to its prompt."""

    objective: ClassVar[str] = "gym_grpo.objective:GRPOLoss"
    advantage: ClassVar[str] = "gym_rl.formulas.advantages:normalized"


class DrGRPO(Clipping):
    """GRPO done right: no division by the deviation of rewards or by the length of answers, which both bias it."""

    objective: ClassVar[str] = "gym_grpo.objective:DrGRPOLoss"
    advantage: ClassVar[str] = "gym_rl.formulas.advantages:centred"


class DAPO(Clipping):
    """GRPO with every token alike, more room upwards, and no prompt that all answers solve or none: for long reasoning."""

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedTokens"
    advantage: ClassVar[str] = "gym_rl.formulas.advantages:normalized"

    clip_high: Annotated[float, Field(ge=0)] = 0.28
    """How far above 1 the ratio may push: further than down, so that unlikely tokens can become likely."""
    max_resample: Annotated[int, Field(ge=0)] = 3
    """How often other prompts are asked in place of those to which all answers are as good, which teaches nothing."""
    mask_truncated: bool = True
    """Whether answers that reach `max_new_tokens` are not learnt from; their rewards still count where others are compared."""
    overlong: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Share of `max_new_tokens` before its end over which an answer loses up to 1 for its length, where no reward of the
    recipe judges length; 0 for no loss."""

    def judges(self) -> list[Reward]:
        """Return the rewards of the recipe, and the punishment of long answers."""
        buffer = round(self.overlong * self.max_new_tokens)
        if not buffer or any(reward.judges_length for reward in self.rewards):
            return self.rewards
        return [*self.rewards, Overlong(maximum=self.max_new_tokens, buffer=buffer)]


class BNPO(Clipping):
    """GRPO whose rewards are normalised by a Beta distribution, fitted to how often prompts are solved; every token alike.

    Not what TRL calls `bnpo`: that is GRPO's advantage with every token of a pass alike, here `dapo` without its extras.
    """

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedTokens"
    credit: ClassVar[str] = "gym_grpo.credit:beta"

    kl: Literal["k2", "k3", "k3_is"] = "k3_is"
    """How a departure from the reference costs: an estimator of `gym_rl.formulas.kl` as a term of the loss."""
    lowest: float = 0.0
    """Least that an answer can earn from all rewards together."""
    highest: float = 1.0
    """Most that an answer can earn."""

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError("`lowest` is not below `highest`")
        return self


class CISPO(PolicyGradient):
    """Clips the weight of a token instead of its loss, so that no token loses its gradient."""

    objective: ClassVar[str] = "gym_grpo.objective:CISPOLoss"
    advantage: ClassVar[str] = "gym_rl.formulas.advantages:normalized"

    cap: Annotated[float, Field(gt=0)] = 5.0
    """Largest weight: the ratio itself, not what is added to 1."""

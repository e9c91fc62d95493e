"""gym-gspo: GSPO and what came of it. Configuration alone; the code that runs is in `objective.py`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from gym_rl import ClippedPolicyGradient, GroupRelative, LossAggMode

__version__ = "0.1.0"
__all__ = ["GSPO", "LUSPO", "VESPO", "GSPOToken"]


class GSPO(GroupRelative, ClippedPolicyGradient):
    """Group sequence policy optimization: clips the sequence ratio, the geometric mean of the token ratios of a completion."""

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedSequences"

    epsilon: Annotated[float, Field(ge=0, le=1)] = 3e-4
    """Clip range: how far below 1 the sequence ratio counts. Sequence ratios are much closer to 1 than those of tokens."""
    epsilon_high: Annotated[float | None, Field(ge=0)] = 4e-4
    """Upper clip range: how far above 1 the sequence ratio counts; unset, `epsilon`."""
    loss_agg_mode: LossAggMode = "seq-mean-token-mean"
    """Loss aggregation, as for all policy gradients; by default every completion counts the same, and its tokens share it."""
    num_mini_batches: PositiveInt = 4
    """Mini-batches: optimizer steps for the completions of one round."""


class GSPOToken(GSPO):
    """GSPO-token: GSPO with an advantage for each token; with one for each completion, as here, it equals GSPO."""

    objective: ClassVar[str] = "gym_gspo.objective:GSPOTokenLoss"


class LUSPO(GSPO):
    """LUSPO: GSPO whose completions count by their length, so that a token of a long one weighs as much as one of a short one."""

    epsilon: Annotated[float, Field(ge=0, le=1)] = 2e-3
    """Clip range: how far below 1 the sequence ratio counts."""
    epsilon_high: Annotated[float | None, Field(ge=0)] = 2.5e-3
    """Upper clip range: how far above 1 the sequence ratio counts; unset, `epsilon`."""
    loss_agg_mode: LossAggMode = "seq-mean-token-sum"
    """Loss aggregation, as for all policy gradients; by default the mean over completions of the sum over tokens."""


class VESPO(GroupRelative):
    """VESPO: a soft weight on the ratio of a whole completion in place of a clip, which also corrects for who sampled it.

    `W^k exp(lambda (1 - W))` scales the gradient of a completion, where W is the product of the ratios of its tokens to the
    policy that sampled: it is 1 at W = 1, highest at W = k / lambda, and falls to 0 on both sides of that.
    """

    objective: ClassVar[str] = "gym_gspo.objective:VESPOLoss"

    num_mini_batches: PositiveInt = 4
    """Mini-batches: optimizer steps for the completions of one round."""
    importance_sampling_correction: Literal["none"] = "none"
    """Importance sampling correction: none, for the weight already compares the policy with the one that sampled."""
    vespo_k_pos: Annotated[float, Field(ge=0)] = 2.0
    """Power k where the advantage is positive: the higher, the less a completion counts that became less likely."""
    vespo_lambda_pos: Annotated[float, Field(gt=0)] = 3.0
    """Decay lambda where the advantage is positive: the higher, the less a completion counts that became more likely."""
    vespo_k_neg: Annotated[float, Field(ge=0)] = 3.0
    """Power k where the advantage is negative."""
    vespo_lambda_neg: Annotated[float, Field(gt=0)] = 2.0
    """Decay lambda where the advantage is negative."""

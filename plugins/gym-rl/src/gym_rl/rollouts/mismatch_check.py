"""How far the trained policy is from the one that sampled, before any training: by other arithmetic, or by mistake.

Asked of the first completions of every round: weights that do not reach the sampler are like those that do before the first
update.
"""

from __future__ import annotations

from torch import Tensor

from gym_core import GymError
from gym_rewards.reward_names import called
from gym_rl.rollout_engine import RolloutEngineConfig


def check(trainer: Tensor, sampled: Tensor, bound: float, engine: RolloutEngineConfig) -> float:
    """Return the mean difference of log-probabilities `[n]` of sampled tokens; NaN where the trainer did not score them.

    Raises GymError where it is above `bound`, in nats: then completions of another policy would be trained on.
    """
    found = float((trainer - sampled).abs().nanmean())
    if not found <= bound:
        raise GymError(
            f"rollouts {called(engine)} sampled with log-probabilities that differ from the trainer's by {found:.3g} on average; "
            f"{bound:g} is the bound",
            key="algorithm.max_mismatch",
            fix="sample with the weights, template and temperature that are trained; `train: {precision: fp32}` is exact",
        )
    return found

"""What tokens earn under BNPO and GDPO."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_core import GymError
from gym_grpo import BNPO, GDPO
from gym_rewards.reward_names import named
from gym_rl.formulas.advantages import bnpo, gdpo
from gym_rl.rollouts.experience import Experience


def beta(experience: Experience, config: BNPO) -> dict[str, Tensor]:
    """Give every token the advantage of its completion. Raises GymError for a reward that is not between the bounds."""
    low, high = config.min_reward, config.max_reward
    outside = [reward for reward in experience.rewards.tolist() if not low <= reward <= high and reward == reward]
    if outside:
        raise GymError(
            f"an answer earned {outside[0]:g}, which is not between {low:g} and {high:g}",
            key="algorithm.max_reward" if outside[0] > high else "algorithm.min_reward",
            fix="set `min_reward` and `max_reward` to what the rewards can add up to",
        )
    return {"advantages": bnpo(experience.rewards, experience.groups, low, high).float()[experience.owner]}


def decoupled(experience: Experience, config: GDPO) -> dict[str, Tensor]:
    """Give every token the advantage of its completion, from what each reward says of it and from the weights of the rewards."""
    rewards = named(config.judges())
    nothing = torch.full_like(experience.rewards, torch.nan)
    unscored = experience.rewards.isnan()[:, None]
    scores = torch.stack([experience.scores.get(name, nothing) for name in rewards], 1).masked_fill(unscored, torch.nan)
    weights = torch.tensor([reward.weight for reward in rewards.values()], dtype=scores.dtype)
    return {"advantages": gdpo(scores, weights, experience.groups).float()[experience.owner]}

"""The last stage of a round: which tokens earned its rewards. From a round to columns that a loss reads.

The formulas are those of `gym_rl.formulas.advantages`, which know nothing of rounds; a function here gives them what they need.
It takes a round and the options of the algorithm, and returns `advantages` `[sum of lengths]` fp32 and perhaps more columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gym_core.component import load_object
from gym_rl.config.base import PolicyGradient
from gym_rl.config.group_relative import GroupRelative
from gym_rl.formulas import advantages
from gym_rl.formulas.kl import k1
from gym_rl.formulas.segment_sums import sums
from gym_rl.rollouts.experience import Experience

Credit = Callable[[Experience, PolicyGradient], Mapping[str, Tensor]]


def advantages_of_completions(experience: Experience, config: PolicyGradient) -> dict[str, Tensor]:
    """Give every token the advantage of its completion, which `config.advantage` makes of rewards and groups."""
    advantage: Callable[[Tensor, Tensor], Tensor] = load_object(config.advantage)
    earned = advantage(completion_rewards(experience, config), experience.groups)
    return {"advantages": earned.float()[experience.owner]}


def group_relative(experience: Experience, config: GroupRelative) -> dict[str, Tensor]:
    """Give every token the reward of its completion, less the mean of its group, divided as `config.scale_rewards` says."""
    rule = advantages.SCALED[config.scale_rewards]
    earned = rule(completion_rewards(experience, config), experience.groups)
    return {"advantages": earned.float()[experience.owner]}


def length_weighted(experience: Experience, config: PolicyGradient) -> dict[str, Tensor]:
    """Give every token the reward of its completion, less the mean of its group weighted by length: OPO, arXiv:2505.23585."""
    earned = advantages.opo(completion_rewards(experience, config), experience.groups, experience.lengths)
    return {"advantages": earned.float()[experience.owner]}


def against_greedy(experience: Experience, config: PolicyGradient) -> dict[str, Tensor]:
    """Give every token the reward of its completion, less that of the greedy one to its prompt: ReMax, arXiv:2310.10505."""
    assert experience.baselines is not None, "`greedy_baseline` says that greedy completions are asked for"
    earned = advantages.remax(completion_rewards(experience, config), experience.baselines)
    return {"advantages": earned.float()[experience.owner]}


def whitened_returns(experience: Experience, config: PolicyGradient) -> dict[str, Tensor]:
    """Give every token the rewards from it to the end of its completion, whitened over all tokens: REINFORCE++,
    arXiv:2501.03262.
    """
    count, owner = len(experience.lengths), experience.owner
    judged = ~experience.rewards.isnan()[owner]
    earned = advantages.rewards_to_go(token_rewards(experience, config), owner, count)
    found = torch.zeros_like(earned)
    found[judged] = advantages.whiten(earned[judged])
    return {"advantages": found.float()}


def completion_rewards(experience: Experience, config: PolicyGradient) -> Tensor:
    """Return what each completion earns, `[completions]` fp64, NaN where it was not scored.

    Less what its departure from the reference costs, where that counts in the reward.
    """
    return experience.rewards - sums(kl_penalties(experience, config), experience.owner, len(experience.lengths))


def token_rewards(experience: Experience, config: PolicyGradient) -> Tensor:
    """Return what each token earns, `[sum of lengths]` fp64: the last one its completion's reward (0 where it has none).

    Less what its departure from the reference costs, where that counts in the reward.
    """
    rewards = -kl_penalties(experience, config)
    spoken = experience.lengths > 0
    last = torch.cumsum(experience.lengths, 0)[spoken] - 1
    rewards[last] += experience.rewards.nan_to_num(0.0)[spoken]
    return rewards


def kl_penalties(experience: Experience, config: PolicyGradient) -> Tensor:
    """Return what each token's departure from the reference takes from its reward, `[sum of lengths]` fp64."""
    if not (config.beta and config.kl_estimator == "k1_in_reward"):
        return torch.zeros(len(experience.tokens), dtype=torch.float64)
    return config.beta * _apart(experience)


def completion_kl(experience: Experience) -> Tensor:
    """Return how far each completion is from the reference, `[completions]` fp64, in nats: an estimate, by k1."""
    return sums(_apart(experience), experience.owner, len(experience.lengths))


def _apart(experience: Experience) -> Tensor:
    sampled = experience.columns["sampling_log_probs"]
    old = experience.columns.get("old_log_probs", sampled)
    return k1(old, experience.columns["ref_log_probs"], sampled).double()

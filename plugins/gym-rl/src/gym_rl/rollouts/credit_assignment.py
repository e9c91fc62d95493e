"""The last stage of a round: which tokens earned its rewards. From a round to columns that a loss reads.

The formulas are those of `gym_rl.formulas.advantages`, which know nothing of rounds; a function here gives them what they need.
It takes a round and the options of the algorithm, and returns `advantages` `[sum of lengths]` fp32 and perhaps more columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gym_core.component import load_object
from gym_rl.config import PolicyGradient
from gym_rl.formulas import advantages
from gym_rl.formulas.kl import k1
from gym_rl.formulas.segment_sums import sums
from gym_rl.rollouts.experience import Round

Credit = Callable[[Round, PolicyGradient], Mapping[str, Tensor]]


def of_answers(round_: Round, config: PolicyGradient) -> dict[str, Tensor]:
    """Give every token the advantage of its answer, which `config.advantage` makes of rewards and groups."""
    advantage: Callable[[Tensor, Tensor], Tensor] = load_object(config.advantage)
    rewards = round_.rewards - sums(departures(round_, config), round_.owner, len(round_.lengths))
    return {"advantages": advantage(rewards, round_.groups).float()[round_.owner]}


def to_go(round_: Round, config: PolicyGradient) -> dict[str, Tensor]:
    """Give every token the rewards from it to the end of its answer, whitened over all tokens: REINFORCE++, arXiv:2501.03262."""
    count, owner = len(round_.lengths), round_.owner
    judged = ~round_.rewards.isnan()[owner]
    earned = advantages.to_go(token_rewards(round_, config), owner, count)
    found = torch.zeros_like(earned)
    found[judged] = advantages.whiten(earned[judged])
    return {"advantages": found.float()}


def token_rewards(round_: Round, config: PolicyGradient) -> Tensor:
    """Return what each token earns, `[sum of lengths]` fp64: the last one its answer's reward (0 where nothing judged it).

    Less what its departure from the reference costs, where that counts in the reward.
    """
    rewards = -departures(round_, config)
    spoken = round_.lengths > 0
    last = torch.cumsum(round_.lengths, 0)[spoken] - 1
    rewards[last] += round_.rewards.nan_to_num(0.0)[spoken]
    return rewards


def departures(round_: Round, config: PolicyGradient) -> Tensor:
    """Return what each token's departure from the reference takes from its reward, `[sum of lengths]` fp64."""
    if not (config.beta and config.kl_estimator == "k1_in_reward"):
        return torch.zeros(len(round_.tokens), dtype=torch.float64)
    old = round_.columns.get("old", round_.columns["sampled"])
    return config.beta * k1(old, round_.columns["reference"], round_.columns["sampled"]).double()

"""How much better than expected a completion was: from rewards to what a policy loss multiplies.

Rewards are `[completions]`; `group` `[completions]` numbers the prompt of each, so that groups may differ in
size. A reward of NaN means that the completion was not scored: it counts in no mean, and its advantage is 0. Nothing here has a
gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gym_rl.formulas.segment_sums import lengths, rows, sums

EPSILON = 1e-4  #: keeps a deviation of zero from dividing
_SIDES = ("amin", "amax")  #: of a group of values, as torch reduces them


def dr_grpo(rewards: Tensor, group: Tensor) -> Tensor:
    """Return reward minus the mean of its group: Dr. GRPO, arXiv:2503.20783, section 3.2."""
    judged = _Judged.of(rewards, group)
    return judged.all(judged.values - judged.mean())


def grpo(rewards: Tensor, group: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return (reward - mean) / (deviation + epsilon) in each group: GRPO, arXiv:2402.03300, section 4.1.2.

    The deviation is the unbiased one, divided by G - 1; a group of one, or of equal rewards, gives 0.
    """
    judged = _Judged.of(rewards, group)
    apart = judged.values - judged.mean()
    variance = sums(apart**2, judged.group, judged.count) / (judged.sizes - 1).clamp(min=1)
    return judged.all(apart / (variance.sqrt()[judged.group] + epsilon))


def batch_scaled(rewards: Tensor, group: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return (reward - mean of its group) / (deviation of all rewards + epsilon): arXiv:2508.08221.

    The deviation is the unbiased one of the rewards themselves, not of their distances from the means of groups: over N scored
    completions, divided by N - 1. A group of one, or of equal rewards, gives 0.
    """
    judged = _Judged.of(rewards, group)
    deviation = judged.values.std() if judged.values.numel() > 1 else 0.0
    return judged.all((judged.values - judged.mean()) / (deviation + epsilon))


def rloo(rewards: Tensor, group: Tensor) -> Tensor:
    """Return reward minus the mean of the others of its group: RLOO, arXiv:2402.14740, equation 7.

    It equals G / (G - 1) times the reward minus the mean of all; a group of one has no others and gives 0.
    """
    judged = _Judged.of(rewards, group)
    size = judged.sizes[judged.group]
    return judged.all((judged.values - judged.mean()) * size / (size - 1).clamp(min=1))


def reinforce_pp_baseline(rewards: Tensor, group: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return reward minus the mean of its group, whitened over the batch: REINFORCE++-baseline, arXiv:2501.03262."""
    judged = _Judged.of(rewards, group)
    return judged.all(standardized(judged.values - judged.mean(), epsilon))


SCALED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"group": grpo, "batch": batch_scaled, "none": dr_grpo}
"""Reward minus the mean of its group, by what divides it: the values of `scale_rewards`."""


def remax(rewards: Tensor, greedy: Tensor) -> Tensor:
    """Return reward minus that of the greedy completion to the same prompt, `[completions]`: ReMax, arXiv:2310.10505."""
    return (rewards - greedy).nan_to_num(0.0)


def opo(rewards: Tensor, group: Tensor, tokens: Tensor) -> Tensor:
    """Return reward minus the mean of its group weighted by length, `tokens` `[completions]`: OPO, arXiv:2505.23585."""
    judged = _Judged.of(rewards, group)
    return judged.all(judged.values - judged.mean(tokens))


def gdpo(rewards: Tensor, weights: Tensor, group: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Normalize each of several rewards `[completions, kinds]` in its group, add them up by `weights` and whiten: GDPO.

    arXiv:2601.05242: a reward of small deviation is not drowned by one of large deviation. A kind that says nothing of a
    completion adds nothing; one of which no kind says anything counts in no mean, and its advantage is 0.
    """
    each = torch.stack([grpo(rewards[:, kind], group, epsilon) for kind in range(rewards.shape[1])], 1)
    total, known = each @ weights.to(each.dtype), ~rewards.isnan().all(1)
    return torch.zeros_like(total).masked_scatter(known, standardized(total[known], epsilon))


def bnpo(rewards: Tensor, group: Tensor, lowest: float = 0.0, highest: float = 1.0) -> Tensor:
    """Return reward minus the mean p of its group, over the density of p in a Beta distribution: BNPO, arXiv:2506.02864.

    Rewards are first mapped to 0 .. 1 from `lowest` .. `highest`. The density is that of Beta(1 + a/3, 1 + b/3), where Beta(a, b)
    has the moments of p over the groups; for a = b = 3/2 this is GRPO on binary rewards, but for a factor. Where p varies
    too little or too much, as with a single group, the density is 1: REINFORCE with a baseline. Unlike the others it sees
    where the rewards of a group lie, so a constant added to them changes it.
    """
    judged = _Judged.of((rewards - lowest) / (highest - lowest), group)
    mean, share = judged.mean(), judged.means()
    alpha, beta = (1 + each.clamp(min=0) / 3 for each in _beta_of(share))
    inside = mean.clamp(1e-6, 1 - 1e-6)  # at 0 and 1 no reward differs from the mean
    density = (alpha - 1) * inside.log() + (beta - 1) * (1 - inside).log() - _log_beta(alpha, beta)
    return judged.all((judged.values - mean) * (-density).exp())


def rewards_to_go(rewards: Tensor, owner: Tensor, count: int, gamma: float = 1.0) -> Tensor:
    """Return for each token the discounted sum of the rewards `[n]` from it to the end of its completion."""
    return gae(rewards, torch.zeros_like(rewards), owner, count, gamma, 1.0)


def gae(
    rewards: Tensor, values: Tensor, owner: Tensor, count: int, gamma: float = 1.0, gae_lambda: float = 0.95
) -> Tensor:
    """Return generalized advantage estimates, arXiv:1506.02438, equation 16.

    `delta_t = r_t + gamma * V_{t+1} - V_t` and `A_t = sum_l (gamma * gae_lambda)^l delta_{t+l}`, where t + 1 is the next
    token that the policy chose: tokens of tools and prompts do not stand in the list.

    Args:
        rewards: of each token, `[n]`; most are zero but the last of a completion.
        values: what the critic expected before each token, `[n]`.
        owner: number of the completion of each token, `[n]`; the tokens of a completion are in their order.
        count: completions.
        gamma: gamma.
        gae_lambda: lambda; 0 is the one-step error, 1 the return minus the value.

    Returns:
        Advantages `[n]`; the returns that a critic learns are advantages + values.

    """
    reward, places = rows(rewards, owner, count)
    value, _ = rows(values, owner, count)
    advantage = torch.zeros_like(reward)
    after = following = reward.new_zeros(count)
    for step in reversed(range(reward.shape[1])):  # behind the end of a completion all is zero and stays so
        delta = reward[:, step] + gamma * following - value[:, step]
        after = delta + gamma * gae_lambda * after
        advantage[:, step], following = after, value[:, step]
    return advantage.flatten()[places]


def whiten(values: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return values less their mean, over their unbiased deviation; 0 where there is only one."""
    if values.numel() < 2:
        return torch.zeros_like(values)
    # The mean of equal values is that value, however their sum is rounded.
    mean = values.mean().clamp(values.min(), values.max())
    return (values - mean) / (values.std() + epsilon)


def standardized(values: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return values whose mean is 0 by what they are, over their unbiased deviation: a value of 0 stays exactly that."""
    return values / (values.std() + epsilon) if values.numel() > 1 else torch.zeros_like(values)


def _beta_of(shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return a and b of the Beta distribution that has the mean and the unbiased variance of these numbers; 0 for none."""
    mean = shares.mean() if len(shares) else shares.new_zeros(())
    variance = shares.var() if len(shares) > 1 else shares.new_zeros(())
    count = (mean * (1 - mean) / variance - 1).nan_to_num(0.0, 0.0, 0.0)
    return count * mean, count * (1 - mean)


def _log_beta(alpha: Tensor, beta: Tensor) -> Tensor:
    return torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)


@dataclass(frozen=True)
class _Judged:
    """The rewards that are numbers, and their groups."""

    known: Tensor  #: [completions] bool
    values: Tensor  #: [scored]
    group: Tensor  #: [scored]
    count: int  #: groups

    @classmethod
    def of(cls, rewards: Tensor, group: Tensor) -> _Judged:
        known = ~rewards.isnan()
        return cls(known, rewards[known], group[known], int(group.max()) + 1 if len(group) else 0)

    @property
    def sizes(self) -> Tensor:
        """Scored completions of each group."""
        return lengths(self.group, self.count)

    def mean(self, weight: Tensor | None = None) -> Tensor:
        """Return the mean of its group for every scored completion, perhaps weighted by `weight` `[completions]`."""
        share = torch.ones_like(self.values) if weight is None else weight[self.known].to(self.values.dtype)
        total = sums(share * self.values, self.group, self.count)
        tiny = torch.finfo(self.values.dtype).tiny  # for a group that weighs nothing
        found = total / sums(share, self.group, self.count).clamp(min=tiny)
        # Sums are rounded, and a mean of equal rewards is that reward: what differs by rounding would be learnt from.
        lowest, highest = (
            found.scatter_reduce(0, self.group, self.values, side, include_self=False) for side in _SIDES
        )
        return found.clamp(lowest, highest)[self.group]

    def means(self) -> Tensor:
        """Return the mean of each group in which anything was scored."""
        total = sums(self.values, self.group, self.count)
        return (total / self.sizes.clamp(min=1))[self.sizes > 0]

    def all(self, values: Tensor) -> Tensor:
        """Return values of the scored completions as those of all completions, `[completions]`."""
        return torch.zeros_like(self.known, dtype=values.dtype).masked_scatter(self.known, values)

"""Advantages against formulas written out by hand, in float64: also for groups of one, equal rewards and rewards of NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gym_rl.formulas import advantages

REWARDS = [1.0, 0.0, 0.0, 1.0, 0.5, 3.0, -1.0, 2.0, 2.0, 2.0, 7.0, math.nan, 0.25, 0.75]
GROUP = [0, 0, 0, 0, 2, 1, 1, 3, 3, 3, 4, 5, 5, 5]
SCORED = [reward for reward in REWARDS if not math.isnan(reward)]
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]


def tensor(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def others(number: int) -> list[int]:
    """Return the judged members of an answer's group, itself included."""
    return [n for n, group in enumerate(GROUP) if group == GROUP[number] and not math.isnan(REWARDS[n])]


def by_hand(formula: Callable[[float, list[float], list[int]], float]) -> Tensor:
    made = []
    for number, reward in enumerate(REWARDS):
        members = others(number)
        made.append(
            0.0 if math.isnan(reward) else formula(reward, [REWARDS[n] for n in members], [TOKENS[n] for n in members])
        )
    return tensor(made)


def deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


FORMULAS: dict[str, Callable[[float, list[float], list[int]], float]] = {
    "dr_grpo": lambda reward, group, tokens: reward - fmean(group),
    "grpo": lambda reward, group, tokens: (reward - fmean(group)) / (deviation(group) + 1e-4),
    "batch_scaled": lambda reward, group, tokens: (reward - fmean(group)) / (deviation(SCORED) + 1e-4),
    "rloo": lambda reward, group, tokens: reward - (sum(group) - reward) / (len(group) - 1) if len(group) > 1 else 0.0,
    "opo": lambda reward, group, tokens: reward - sum(r * n for r, n in zip(group, tokens, strict=True)) / sum(tokens),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_groups_by_hand(name: str) -> None:
    more = (torch.tensor(TOKENS),) if name == "opo" else ()
    found = getattr(advantages, name)(tensor(REWARDS), torch.tensor(GROUP), *more)
    torch.testing.assert_close(found, by_hand(FORMULAS[name]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("right", "wanted"), [(1, (1.7885, -0.4471)), (2, (1.0952, -0.7302)), (0, (0, 0)), (5, (0, 0))]
)
def test_five_answers_of_which_some_are_right(right: int, wanted: tuple[float, float]) -> None:
    found = advantages.grpo(tensor([1.0] * right + [0.0] * (5 - right)), torch.zeros(5, dtype=torch.long))
    assert found.tolist() == pytest.approx([wanted[0]] * right + [wanted[1]] * (5 - right), abs=1e-4)


@given(st.lists(st.lists(st.floats(-10, 10), min_size=2, max_size=6), min_size=1, max_size=5))
def test_leave_one_out_is_centred_times_g_over_g_minus_one(groups: list[list[float]]) -> None:
    rewards = tensor([reward for group in groups for reward in group])
    number = torch.tensor([n for n, group in enumerate(groups) for _ in group])
    factor = tensor([len(group) / (len(group) - 1) for group in groups for _ in group])
    found = advantages.rloo(rewards, number)
    torch.testing.assert_close(found, advantages.dr_grpo(rewards, number) * factor, rtol=0, atol=1e-9)


@given(st.permutations(range(len(REWARDS))))
def test_the_order_of_answers_does_not_matter(order: list[int]) -> None:
    rewards, group = tensor(REWARDS), torch.tensor(GROUP)
    shuffled = advantages.grpo(rewards[order], group[order])
    torch.testing.assert_close(shuffled, advantages.grpo(rewards, group)[order])


@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 16)), min_size=1, max_size=4))
def test_equal_rewards_earn_exactly_nothing(groups: list[tuple[float, int]]) -> None:
    """Eight times 0.1 add up to less than 0.8, and whatever is left over would be learnt from."""
    rewards = tensor([reward for reward, size in groups for _ in range(size)])
    number = torch.tensor([n for n, (_, size) in enumerate(groups) for _ in range(size)])
    for name in ("dr_grpo", "grpo", "batch_scaled", "rloo", "reinforce_pp_baseline"):
        assert not getattr(advantages, name)(rewards, number).any(), name
    assert not advantages.opo(rewards, number, torch.arange(1, 1 + len(rewards))).any()
    assert not advantages.whiten(rewards[number == 0]).any()


def test_equal_rewards_earn_exactly_nothing_beside_others_that_differ() -> None:
    """A mean over the round that is 0 but for rounding would give them something, and an optimizer of signs a whole step."""
    rewards, group = tensor([0.5, 0.8, 0.1, 0.1, 0.3, *[0.1] * 4]), torch.arange(9) // 5
    found = [
        advantages.reinforce_pp_baseline(rewards, group),
        advantages.gdpo(torch.stack([rewards, 2 * rewards], 1), tensor([0.3, -0.1]), group),
        advantages.opo(rewards, group, torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5])),
    ]
    for each in found:
        assert each[:5].all() and not each[5:].any()


def test_group_then_batch_is_whitened_over_the_judged() -> None:
    apart = [
        value for value, reward in zip(by_hand(FORMULAS["dr_grpo"]).tolist(), REWARDS, strict=True) if reward == reward
    ]
    found = advantages.reinforce_pp_baseline(tensor(REWARDS), torch.tensor(GROUP))
    wanted = [(value - fmean(apart)) / (stdev(apart) + 1e-4) for value in apart]
    assert found[~tensor(REWARDS).isnan()].tolist() == pytest.approx(wanted, abs=1e-12)
    assert found[11] == 0


def test_decoupled_rewards_of_any_scale_count_the_same() -> None:
    torch.manual_seed(0)
    rewards = torch.rand(12, 2, dtype=torch.float64)
    group = torch.arange(12) // 4
    scaled = rewards * tensor([1.0, 1000.0])
    weights = tensor([1.0, 0.5])
    found = advantages.gdpo(rewards, weights, group, epsilon=0.0)
    torch.testing.assert_close(advantages.gdpo(scaled, weights, group, epsilon=0.0), found)
    each = sum(w * advantages.grpo(rewards[:, n], group, 0.0) for n, w in enumerate(weights))
    torch.testing.assert_close(found, (each - each.mean()) / each.std())
    silent = rewards.clone()
    silent[[2, 5]] = math.nan  # answers that nothing judged
    rest = [n for n in range(12) if n not in (2, 5)]
    found = advantages.gdpo(silent, weights, group)
    torch.testing.assert_close(found[rest], advantages.gdpo(rewards[rest], weights, group[rest]))
    assert found[[2, 5]].tolist() == [0, 0]


def test_against_the_greedy_answer() -> None:
    found = advantages.remax(tensor([1.0, 0.0, math.nan]), tensor([0.5, 0.5, 1.0]))
    assert found.tolist() == [0.5, -0.5, 0.0]


LENGTHS = [4, 1, 0, 7]


def trajectory() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    owner = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    shuffled = owner[torch.randperm(len(owner))]  # answers may interleave
    return torch.randn(len(owner), dtype=torch.float64), torch.randn(len(owner), dtype=torch.float64), shuffled


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.97, 0.0)])
def test_gae_by_hand(gamma: float, gae_lambda: float) -> None:
    rewards, values, owner = trajectory()
    found = advantages.gae(rewards, values, owner, len(LENGTHS), gamma, gae_lambda)
    for answer in range(len(LENGTHS)):
        places = [n for n in range(len(owner)) if owner[n] == answer]
        for start in range(len(places)):
            wanted = 0.0
            for step in range(start, len(places)):
                after = values[places[step + 1]] if step + 1 < len(places) else 0.0
                delta = rewards[places[step]] + gamma * after - values[places[step]]
                wanted += (gamma * gae_lambda) ** (step - start) * delta
            assert float(found[places[start]]) == pytest.approx(float(wanted), abs=1e-9)


def test_gae_at_its_ends() -> None:
    rewards, values, owner = trajectory()
    count = len(LENGTHS)
    whole = advantages.gae(rewards, values, owner, count, 1.0, 1.0)
    torch.testing.assert_close(whole, advantages.rewards_to_go(rewards, owner, count) - values)
    single = advantages.gae(rewards, values, owner, count, 1.0, 0.0)
    last = [int((owner == answer).nonzero()[-1]) for answer in range(count) if (owner == answer).any()]
    torch.testing.assert_close(single[last], (rewards - values)[last])


def test_nothing_at_all() -> None:
    none, group = tensor([]), torch.tensor([], dtype=torch.long)
    for name in ("dr_grpo", "grpo", "batch_scaled", "rloo", "reinforce_pp_baseline"):
        assert getattr(advantages, name)(none, group).tolist() == []
    assert advantages.gae(none, none, group, 0).tolist() == []
    for rule in advantages.SCALED.values():
        assert rule(tensor([math.nan] * 2), torch.tensor([0, 0])).tolist() == [0.0, 0.0]
        assert rule(tensor([math.nan, 5.0]), torch.tensor([0, 1])).tolist() == [0.0, 0.0]


def test_beta_normalization_by_hand() -> None:
    rewards, group = tensor([1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, math.nan, math.nan]), torch.arange(14) // 4
    shares = [0.25, 0.5, 0.75]
    mean, variance = fmean(shares), stdev(shares) ** 2
    a, b = ((mean * (1 - mean) / variance - 1) * part for part in (mean, 1 - mean))
    alpha, beta = 1 + a / 3, 1 + b / 3
    whole = math.exp(math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta))
    wanted = [
        0.0 if math.isnan(r) else (r - p) * whole / (p ** (alpha - 1) * (1 - p) ** (beta - 1))
        for r, p in zip(rewards.tolist(), [shares[min(2, n // 4)] for n in range(14)], strict=True)
    ]
    torch.testing.assert_close(advantages.bnpo(rewards, group), tensor(wanted), rtol=0, atol=1e-9)
    doubled = advantages.bnpo(4 * rewards - 2, group, -2.0, 2.0)
    torch.testing.assert_close(doubled, tensor(wanted), rtol=0, atol=1e-9)
    mirrored = advantages.bnpo(1 - rewards, group)
    torch.testing.assert_close(mirrored, -tensor(wanted), rtol=0, atol=1e-9)


def test_beta_normalization_without_a_distribution_is_a_baseline_alone() -> None:
    one = tensor([1, 0, 0, 1, 0.5])
    for group in (
        torch.zeros(5, dtype=torch.int64),
        torch.tensor([0, 0, 1, 1, 2]),
    ):  # one group, and three of equal means
        found = advantages.bnpo(one, group)
        torch.testing.assert_close(found, advantages.dr_grpo(one, group), rtol=0, atol=1e-9)
    equal = advantages.bnpo(tensor([1, 1, 0, 0, 1, 1]), torch.arange(6) // 2)
    assert (equal == 0).all()

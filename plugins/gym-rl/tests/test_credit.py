"""Which tokens earn what: against formulas written out answer by answer, in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, stdev

import pytest
import torch
from torch import Tensor

from gym_rewards import Length
from gym_rl import OPO, RLOO, GroupRelative, PolicyGradient, ReinforcePP, ReinforcePPBaseline
from gym_rl.rollouts.compute_advantages import (
    advantages_of_completions,
    group_relative,
    length_weighted,
    whitened_returns,
)
from gym_rl.rollouts.experience import Experience
from gym_rl.rollouts.metrics import rollout_metrics

LENGTHS = [3, 1, 4, 2, 5, 2]
GROUPS = [0, 0, 0, 1, 1, 1]
REWARDS = [1.0, 0.0, 0.5, 2.0, math.nan, -1.0]
TOKENS = sum(LENGTHS)


def made() -> Experience:
    """Return a round of two groups, one answer of which nothing judged."""
    draw = torch.Generator().manual_seed(0)
    columns = {
        name: -3 * torch.rand(TOKENS, generator=draw)
        for name in ("sampling_log_probs", "old_log_probs", "ref_log_probs")
    }
    return Experience(
        number=torch.tensor(0),
        groups=torch.tensor(GROUPS),
        prompts=torch.tensor(GROUPS),
        lengths=torch.tensor(LENGTHS),
        tokens=torch.zeros(TOKENS, dtype=torch.int32),
        finished=torch.ones(len(LENGTHS), dtype=torch.bool),
        rewards=torch.tensor(REWARDS, dtype=torch.float64),
        columns=columns,
    )


def by_answer(column: Tensor) -> list[list[float]]:
    return [part.tolist() for part in column.double().split(LENGTHS)]


def costs(experience: Experience, beta: float) -> list[list[float]]:
    """Return beta * (log pi - log ref) of each token of each answer."""
    pairs = zip(
        by_answer(experience.columns["old_log_probs"]), by_answer(experience.columns["ref_log_probs"]), strict=True
    )
    return [[beta * (new - ref) for new, ref in zip(*pair, strict=True)] for pair in pairs]


def options(cls: type[PolicyGradient], **more: float | str) -> PolicyGradient:
    return cls(rewards=[Length()], **more)


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_reinforce_plus_plus_whitens_what_follows_each_token(beta: float) -> None:
    experience = made()
    earned: list[list[float]] = []
    for reward, cost in zip(REWARDS, costs(experience, beta), strict=True):
        each = [-value for value in cost]
        each[-1] += reward
        earned.append([math.fsum(each[place:]) for place in range(len(each))])
    judged = [value for one in earned for value in one if not math.isnan(value)]
    mean, spread = fmean(judged), stdev(judged)
    wanted = [0.0 if math.isnan(value) else (value - mean) / (spread + 1e-4) for one in earned for value in one]
    found = whitened_returns(experience, options(ReinforcePP, beta=beta))["advantages"]
    assert found.tolist() == pytest.approx(wanted, abs=1e-5)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_rloo_compares_rewards_less_their_kl_with_those_of_the_others(beta: float) -> None:
    experience = made()
    totals = [reward - math.fsum(cost) for reward, cost in zip(REWARDS, costs(experience, beta), strict=True)]
    wanted = []
    for number, total in enumerate(totals):
        others = [totals[n] for n, group in enumerate(GROUPS) if group == GROUPS[number] and n != number]
        judged = [value for value in others if not math.isnan(value)]
        wanted += [0.0 if math.isnan(total) else total - fmean(judged)] * LENGTHS[number]
    found = advantages_of_completions(experience, options(RLOO, beta=beta))["advantages"]
    assert found.tolist() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_opo_weighs_the_rewards_of_a_group_by_length(beta: float) -> None:
    experience = made()
    totals = [reward - math.fsum(cost) for reward, cost in zip(REWARDS, costs(experience, beta), strict=True)]
    wanted = []
    for number, total in enumerate(totals):
        members = [n for n, group in enumerate(GROUPS) if group == GROUPS[number] and not math.isnan(totals[n])]
        mean = sum(LENGTHS[n] * totals[n] for n in members) / sum(LENGTHS[n] for n in members)
        wanted += [0.0 if math.isnan(total) else total - mean] * LENGTHS[number]
    found = length_weighted(experience, options(OPO, beta=beta, kl_estimator="k1_in_reward" if beta else "k3_is"))
    assert found["advantages"].tolist() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
def test_group_relative_rewards_are_divided_by_what_is_named(scale_rewards: str, beta: float) -> None:
    experience = made()
    totals = [reward - math.fsum(cost) for reward, cost in zip(REWARDS, costs(experience, beta), strict=True)]
    scored = [total for total in totals if not math.isnan(total)]
    wanted = []
    for number, total in enumerate(totals):
        group = [t for t, of in zip(totals, GROUPS, strict=True) if of == GROUPS[number] and not math.isnan(t)]
        divisor = {"group": stdev(group) + 1e-4, "batch": stdev(scored) + 1e-4, "none": 1.0}[scale_rewards]
        wanted += [0.0 if math.isnan(total) else (total - fmean(group)) / divisor] * LENGTHS[number]
    config = options(
        GroupRelative, scale_rewards=scale_rewards, beta=beta, kl_estimator="k1_in_reward" if beta else "k3_is"
    )
    found = group_relative(experience, config)["advantages"]
    assert found.tolist() == pytest.approx(wanted, abs=1e-5)
    assert found.dtype == torch.float32


def test_reinforce_plus_plus_with_a_baseline_whitens_what_groups_leave() -> None:
    judged = [reward for reward in REWARDS if not math.isnan(reward)]
    means = [fmean(r for r, g in zip(REWARDS, GROUPS, strict=True) if g == group and r == r) for group in GROUPS]
    apart = [reward - mean for reward, mean in zip(REWARDS, means, strict=True)]
    left = [value for value in apart if not math.isnan(value)]
    each = [0.0 if math.isnan(value) else (value - fmean(left)) / (stdev(left) + 1e-4) for value in apart]
    found = advantages_of_completions(made(), options(ReinforcePPBaseline, beta=0.3))["advantages"]
    assert len(left) == len(judged)
    assert found.tolist() == pytest.approx(
        [value for value, n in zip(each, LENGTHS, strict=True) for _ in range(n)], abs=1e-5
    )


def test_a_penalty_in_the_loss_is_not_taken_from_the_reward_too() -> None:
    experience = made()
    with_it, without = (
        advantages_of_completions(experience, options(RLOO, **penalty))
        for penalty in ({"kl_estimator": "k2", "beta": 0.3}, {"beta": 0.0})
    )
    assert torch.equal(with_it["advantages"], without["advantages"])


def test_where_no_old_policy_was_scored_the_one_that_sampled_departs() -> None:
    experience = made()
    bare = {name: column for name, column in experience.columns.items() if name != "old_log_probs"}
    same = {**bare, "old_log_probs": bare["sampling_log_probs"]}
    config = options(ReinforcePP, beta=0.3)
    replaced = [Experience(**{**vars(experience), "columns": columns}) for columns in (bare, same)]
    first, second = (whitened_returns(one, config)["advantages"] for one in replaced)
    assert torch.equal(first, second)


def test_entropy_and_kl_are_means_over_tokens() -> None:
    experience = made()
    found, columns = (
        rollout_metrics(experience),
        {name: column.double().tolist() for name, column in experience.columns.items()},
    )
    assert found["entropy"] == pytest.approx(-fmean(columns["sampling_log_probs"]), abs=1e-6)
    apart = [ref - new for new, ref in zip(columns["old_log_probs"], columns["ref_log_probs"], strict=True)]
    assert found["kl"] == pytest.approx(fmean(math.exp(u) - u - 1 for u in apart), rel=1e-5)
    del experience.columns["ref_log_probs"]
    assert "kl" not in rollout_metrics(experience)


def test_lengths_are_of_all_and_of_those_that_ended_by_themselves() -> None:
    experience = made()
    for ended in ([True] * len(experience.lengths), [False, *[True] * (len(experience.lengths) - 1)]):
        found = rollout_metrics(replace(experience, finished=torch.tensor(ended)))
        sizes = [size for size, whole in zip(experience.lengths.tolist(), ended, strict=True) if whole]
        for name, wanted in {"mean": fmean(sizes), "min": min(sizes), "max": max(sizes)}.items():
            assert found[f"completions/{name}_terminated_length"] == pytest.approx(wanted)
        assert found["completions/max_length"] == max(experience.lengths.tolist())
    none = rollout_metrics(replace(experience, finished=torch.zeros(len(experience.lengths), dtype=torch.bool)))
    assert not any("terminated" in name for name in none)


def test_what_is_as_likely_as_its_entropy_says_measures_it() -> None:
    """The mean over draws of -log p of what is drawn is the entropy, by enumeration of a distribution."""
    log_probs = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).log_softmax(0)
    wanted = float(torch.distributions.Categorical(logits=log_probs).entropy())
    drawn = torch.multinomial(log_probs.exp(), 200_000, replacement=True, generator=torch.Generator().manual_seed(1))
    each = Experience(**{**vars(made()), "columns": {"sampling_log_probs": log_probs[drawn].float()}})
    assert rollout_metrics(each)["entropy"] == pytest.approx(
        wanted, abs=3 * float(log_probs[drawn].std()) / len(drawn) ** 0.5
    )

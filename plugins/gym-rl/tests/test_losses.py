"""Policy losses: against formulas by hand, against each other, and where they must all be the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from gym_rl_losses import clipped_completions, clipped_tokens, weighted_completions
from torch import Tensor

from gym_rl.formulas import loss_aggregation, off_policy_correction, policy_losses, segment_sums

LENGTHS = [3, 1, 5, 2]
COUNT = len(LENGTHS)
OWNER = torch.repeat_interleave(torch.arange(COUNT), torch.tensor(LENGTHS))


def drawn(spread: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities with a gradient, those of an older policy, and an advantage for each answer."""
    generator = torch.Generator().manual_seed(seed)
    log_probs = -torch.rand(len(OWNER), dtype=torch.float64, generator=generator) * 3
    old = log_probs + spread * torch.randn(len(OWNER), dtype=torch.float64, generator=generator)
    advantages = torch.randn(COUNT, dtype=torch.float64, generator=generator)
    return log_probs.requires_grad_(), old.detach(), advantages


def gradient(loss: Tensor, log_probs: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss, log_probs)
    return found


ON_POLICY: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], loss_aggregation.LossAggregation]] = {
    "grpo": (lambda p, q, a: clipped_tokens(p, q, a[OWNER], 0.2, 0.2), loss_aggregation.SequenceMeanTokenMean()),
    "dapo": (lambda p, q, a: clipped_tokens(p, q, a[OWNER], 0.2, 0.28), loss_aggregation.TokenMean()),
    "dr_grpo": (
        lambda p, q, a: clipped_tokens(p, q, a[OWNER], 0.2, 0.2),
        loss_aggregation.SequenceMeanTokenSumNorm(8),
    ),
    "gspo_token": (
        lambda p, q, a: policy_losses.gspo_token(p, q, a[OWNER], OWNER, COUNT, 3e-4, 4e-4),
        loss_aggregation.SequenceMeanTokenMean(),
    ),
    "cispo": (lambda p, q, a: policy_losses.cispo(p, q, a[OWNER], 5.0), loss_aggregation.TokenMean()),
    "sapo": (lambda p, q, a: policy_losses.sapo(p, q, a[OWNER]), loss_aggregation.TokenMean()),
    "vespo": (lambda p, q, a: weighted_completions(p, q, a[OWNER], OWNER, COUNT), loss_aggregation.TokenMean()),
}


@pytest.mark.parametrize("name", ON_POLICY)
def test_on_policy_the_gradient_is_that_of_reinforce(name: str) -> None:
    loss, way = ON_POLICY[name]
    log_probs, _, advantages = drawn(0.0)
    found = gradient(way.total(loss(log_probs, log_probs.detach(), advantages), OWNER, COUNT), log_probs)
    wanted = gradient(way.total(policy_losses.reinforce(log_probs, advantages[OWNER]), OWNER, COUNT), log_probs)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", [clipped_completions, policy_losses.gmpo])
def test_on_policy_whole_answers_too(loss: Callable[..., Tensor]) -> None:
    log_probs, _, advantages = drawn(0.0)
    found = gradient(loss(log_probs, log_probs.detach(), advantages, OWNER, COUNT, 3e-4, 4e-4).sum(), log_probs)
    each = segment_sums.means(policy_losses.reinforce(log_probs, advantages[OWNER]), OWNER, COUNT)
    torch.testing.assert_close(found, gradient(each.sum(), log_probs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spread", [1e-4, 0.01, 0.5])
def test_gspo_is_gspo_token_where_an_answer_has_one_advantage(spread: float) -> None:
    log_probs, old, advantages = drawn(spread)
    whole = clipped_completions(log_probs, old, advantages, OWNER, COUNT, 3e-4, 4e-4)
    tokens = policy_losses.gspo_token(log_probs, old, advantages[OWNER], OWNER, COUNT, 3e-4, 4e-4)
    torch.testing.assert_close(segment_sums.means(tokens, OWNER, COUNT), whole, rtol=1e-9, atol=1e-12)
    summed = loss_aggregation.SequenceMeanTokenMean().total(tokens, OWNER, COUNT)
    torch.testing.assert_close(gradient(summed, log_probs), gradient(whole.sum(), log_probs), rtol=1e-9, atol=1e-12)


def test_gspo_by_hand() -> None:
    log_probs, old, advantages = drawn(0.3)
    found = clipped_completions(log_probs, old, advantages, OWNER, COUNT, 0.1, 0.2)
    for answer in range(COUNT):
        places = [n for n in range(len(OWNER)) if OWNER[n] == answer]
        ratio = math.exp(sum(float(log_probs[n] - old[n]) for n in places) / len(places))
        a = float(advantages[answer])
        assert float(found[answer]) == pytest.approx(-min(ratio * a, min(max(ratio, 0.9), 1.2) * a), abs=1e-12)


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 2.0])
@pytest.mark.parametrize(("ratio", "dual"), [(0.5, None), (1.0, None), (1.5, None), (0.5, 3.0), (1.0, 3.0), (5.0, 3.0)])
def test_the_geometry_of_the_clip(ratio: float, advantage: float, dual: float | None) -> None:
    log_probs = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    a = torch.tensor([advantage], dtype=torch.float64)
    loss = clipped_tokens(log_probs, torch.zeros(1, dtype=torch.float64), a, 0.2, 0.3, dual)
    wanted = -min(ratio * advantage, min(max(ratio, 0.8), 1.3) * advantage)
    held = (advantage > 0 and ratio > 1.3) or (advantage < 0 and ratio < 0.8)
    if dual is not None and advantage < 0 and wanted > -dual * advantage:
        wanted, held = -dual * advantage, True
    assert float(loss) == pytest.approx(wanted, abs=1e-12)
    slope = float(gradient(loss.sum(), log_probs))
    assert slope == pytest.approx(0.0 if held else -advantage * ratio, abs=1e-12)
    assert bool(policy_losses.is_clipped(torch.tensor([ratio]), a, 0.2, 0.3, dual)) == held


def test_cispo_caps_the_weight_and_keeps_the_gradient() -> None:
    log_probs = torch.tensor([math.log(9.0), math.log(0.5)], requires_grad=True, dtype=torch.float64)
    a = torch.tensor([1.0, -2.0], dtype=torch.float64)
    found = gradient(policy_losses.cispo(log_probs, torch.zeros(2, dtype=torch.float64), a, 5.0).sum(), log_probs)
    assert found.tolist() == pytest.approx([-5.0, 1.0])


def test_geometric_mean_by_hand() -> None:
    log_probs, old, advantages = drawn(0.6)
    found = policy_losses.gmpo(log_probs, old, advantages, OWNER, COUNT, 0.4, 0.3)
    for answer in range(COUNT):
        a = float(advantages[answer])
        apart = [float(log_probs[n] - old[n]) for n in range(len(OWNER)) if OWNER[n] == answer]
        apart = [min(x, 0.3) if a > 0 else max(x, -0.4) for x in apart]
        assert float(found[answer]) == pytest.approx(-math.exp(sum(apart) / len(apart)) * a, abs=1e-12)


@pytest.mark.parametrize("advantage", [-1.0, 2.0])
def test_the_weight_of_vespo_is_one_at_one_and_finite_anywhere(advantage: float) -> None:
    ratio = torch.tensor([math.exp(-20), 0.5, 1.0, 2.0, math.exp(20)])  # as far as ratios go
    found = policy_losses.vespo_weight(ratio, torch.full_like(ratio, advantage), (6.0, 3.0), (3.0, 2.0)).tolist()
    assert found[2] == 1 and found[0] < 1e-20 and found[4] == 0
    k, decay = (6.0, 3.0) if advantage > 0 else (3.0, 2.0)
    assert found[1::2] == pytest.approx([w**k * math.exp(decay * (1 - w)) for w in (0.5, 2.0)])


def test_value_loss_by_hand() -> None:
    values = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)
    found = policy_losses.value_loss(values, torch.tensor([0.5, 2.1, 0.0]), torch.tensor([0.0, 3.0, 1.0]), 0.2)
    near = [0.7, 2.0, 0.0]
    wanted = [
        max((v - r) ** 2, (n - r) ** 2) / 2 for v, n, r in zip([1.0, 2.0, 0.0], near, [0.0, 3.0, 1.0], strict=True)
    ]
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    "way",
    [
        loss_aggregation.TokenMean(),
        loss_aggregation.SequenceMeanTokenMean(),
        loss_aggregation.SequenceMeanTokenSum(),
        loss_aggregation.SequenceMeanTokenSumNorm(9),
    ],
)
@pytest.mark.parametrize("cuts", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0], [1], [2], [3]], [[2, 0], [], [3, 1]]])
def test_how_a_step_is_cut_changes_nothing(way: loss_aggregation.LossAggregation, cuts: list[list[int]]) -> None:
    each = torch.randn(len(OWNER), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    whole = way.total(each, OWNER, COUNT) / way.weight(OWNER, COUNT, COUNT)
    total, weight = torch.zeros((), dtype=torch.float64), 0.0
    for cut in cuts:
        owner = torch.repeat_interleave(
            torch.arange(len(cut)), torch.tensor([LENGTHS[n] for n in cut], dtype=torch.long)
        )
        values = torch.cat([each[n == OWNER] for n in cut]) if cut else each[:0]
        total, weight = total + way.total(values, owner, len(cut)), weight + way.weight(owner, len(cut), len(cut))
    torch.testing.assert_close(total / weight, whole, rtol=1e-12, atol=1e-12)


def test_an_answer_without_tokens_is_no_nan() -> None:
    owner = torch.tensor([0, 0, 2])
    log_probs = torch.zeros(3, requires_grad=True)
    loss = clipped_completions(log_probs, torch.zeros(3), torch.ones(3), owner, 3, 0.1, 0.1)
    assert loss.isfinite().all() and gradient(loss.sum(), log_probs).isfinite().all()
    assert (
        loss_aggregation.SequenceMeanTokenMean().total(log_probs + 1, owner, 3) == 2
        and loss_aggregation.SequenceMeanTokenMean().weight(owner, 3, 3) == 3
    )


def test_ratios_beyond_all_bounds_stay_finite() -> None:
    log_probs = torch.tensor([-1e4, 0.0, -math.inf], requires_grad=True)
    old = torch.tensor([0.0, -1e4, -math.inf])
    loss = clipped_tokens(log_probs, old, torch.tensor([1.0, -1.0, 1.0]), 0.2, 0.2).sum()
    assert loss.isfinite() and gradient(loss, log_probs).isfinite().all()


def test_corrections_by_hand() -> None:
    ratio = torch.log(torch.tensor([1.0, 4.0, 0.25, 3.0, 1.0], dtype=torch.float64))
    owner = torch.tensor([0, 0, 1, 1, 2])
    close = pytest.approx
    assert off_policy_correction.tis(ratio, 2.0).tolist() == close([1, 2, 0.25, 2, 1])
    assert off_policy_correction.sequence_tis(ratio, owner, 3, 2.0).tolist() == close([2, 2, 0.75, 0.75, 1])
    assert off_policy_correction.icepop(ratio, 0.5, 3.5).tolist() == close([1, 0, 0, 3, 1])
    assert off_policy_correction.mis(ratio, owner, 3, 2.0).tolist() == close([0, 0, 0.75, 0.75, 1])
    assert off_policy_correction.geo(ratio, owner, 3, 0.8, 1.5).tolist() == [0, 0, 1, 1, 1]
    for advantages, wanted in (([-1, -1, -1, -1, -1], [1, 1, 0, 0, 1]), ([-1, 1, -1, 1, 0], [1, 1, 0, 1, 1])):
        kept = off_policy_correction.off_policy_mask(ratio, torch.tensor(advantages), owner, 3, 0.1)
        assert kept.tolist() == wanted


def test_without_a_cap_the_weighted_gradient_is_that_of_the_policy() -> None:
    """Sampling from one distribution and weighting is as sampling from the other, exactly: by enumeration."""
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    sampler = torch.randn(6, dtype=torch.float64).log_softmax(0)
    rewards = torch.randn(6, dtype=torch.float64)
    log_probs = logits.log_softmax(0)
    weights = off_policy_correction.tis(log_probs.detach() - sampler, math.inf)
    found = torch.autograd.grad((sampler.exp() * weights * policy_losses.reinforce(log_probs, rewards)).sum(), logits)[
        0
    ]
    log_probs = logits.log_softmax(0)
    wanted = torch.autograd.grad(-(log_probs.exp() * rewards).sum(), logits)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)

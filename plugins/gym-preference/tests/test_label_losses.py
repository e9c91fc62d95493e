"""Losses of judged answers against formulas in NumPy, in value and gradient, and where they must be what."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from numeric import Array, gradient

from gym_preference.unpaired import losses as label_losses

SAMPLES = 12
Labels = npt.NDArray[np.bool_]


def drawn(seed: int, spread: float = 30.0) -> tuple[Array, Labels]:
    """Return log-ratios and judgements."""
    random = np.random.default_rng(seed)
    return spread * random.normal(size=SAMPLES), random.integers(0, 2, SAMPLES).astype(bool)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def kto(ratios: Array, good: Labels, kl: float, beta: float, desirable: float, undesirable: float) -> float:
    """Return the sum of what the paper writes for each answer: its weight minus its value."""
    total = 0.0
    for ratio, label in zip(ratios, good, strict=True):
        if label:
            total += desirable - desirable * sigmoid(beta * (ratio - kl))
        else:
            total += undesirable - undesirable * sigmoid(beta * (kl - ratio))
    return total


def bco(ratios: Array, good: Labels, shift: float, beta: float) -> float:
    """Return the cross entropy of a logistic regression on rewards."""
    logits = [beta * ratio - shift for ratio in ratios]
    return -sum(math.log(sigmoid(x if label else -x)) for x, label in zip(logits, good, strict=True))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("kl", "beta", "desirable", "undesirable"), [(0.0, 0.1, 1.0, 1.0), (3.5, 0.3, 1.33, 0.7)])
def test_kto_is_the_formula(seed: int, kl: float, beta: float, desirable: float, undesirable: float) -> None:
    ratios, good = drawn(seed)
    own = torch.tensor(ratios, requires_grad=True)
    losses = label_losses.kto(own, torch.tensor(good), torch.tensor(kl), beta, desirable, undesirable)
    losses.sum().backward()
    assert losses.sum().item() == pytest.approx(kto(ratios, good, kl, beta, desirable, undesirable), rel=1e-6)
    wanted = gradient(lambda at: kto(at, good, kl, beta, desirable, undesirable), ratios)
    np.testing.assert_allclose(own.grad.numpy(), wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("shift", "beta"), [(0.0, 0.1), (-1.2, 0.1), (0.8, 0.02)])
def test_bco_is_the_formula(seed: int, shift: float, beta: float) -> None:
    ratios, good = drawn(seed)
    own = torch.tensor(ratios, requires_grad=True)
    losses = label_losses.bco(own, torch.tensor(good), torch.tensor(shift / beta), beta)
    losses.sum().backward()
    assert losses.sum().item() == pytest.approx(bco(ratios, good, shift, beta), rel=1e-6)
    wanted = gradient(lambda at: bco(at, good, shift, beta), ratios)
    np.testing.assert_allclose(own.grad.numpy(), wanted, rtol=1e-6, atol=1e-9)


def test_an_answer_as_likely_as_before_costs_half_of_its_weight_where_nothing_has_moved() -> None:
    good = torch.tensor([True, False])
    found = label_losses.kto(torch.zeros(2), good, torch.zeros(()), 0.1, 1.5, 0.5)
    torch.testing.assert_close(found, torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(
        label_losses.bco(torch.zeros(2), good, torch.zeros(()), 0.1), torch.full((2,), math.log(2))
    )


@pytest.mark.parametrize("ratio", [-1e4, 1e4])
def test_far_away_losses_and_gradients_are_finite(ratio: float) -> None:
    good = torch.tensor([True, False])
    for loss in (label_losses.kto, label_losses.bco):
        own = torch.full((2,), ratio, requires_grad=True)
        found = loss(own, good, torch.zeros(()), 0.1)
        found.sum().backward()
        assert found.isfinite().all() and own.grad.isfinite().all()

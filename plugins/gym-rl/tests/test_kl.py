"""KL estimators by enumeration over a vocabulary of six: what they expect to be, and where their gradients point."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gym_rl.formulas.kl import ESTIMATORS


def distributions() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    return logits, torch.randn(6, dtype=torch.float64).log_softmax(0)


def forward(policy: Tensor, reference: Tensor) -> Tensor:
    return (policy.exp() * (policy - reference)).sum()


def reverse(policy: Tensor, reference: Tensor) -> Tensor:
    return (reference.exp() * (reference - policy)).sum()


@pytest.mark.parametrize(("name", "unbiased"), [("k1", True), ("k2", False), ("k3", True), ("k3_is", True)])
def test_expectation(name: str, unbiased: bool) -> None:
    logits, reference = distributions()
    policy = logits.log_softmax(0).detach()
    found = (policy.exp() * ESTIMATORS[name](policy, reference, policy)).sum()
    assert (abs(float(found - forward(policy, reference))) < 1e-9) == unbiased


@pytest.mark.parametrize(
    ("name", "divergence"),
    [
        ("k1", lambda policy, reference: (policy * 0).sum()),
        ("k2", forward),
        ("k3", reverse),
        ("k3_is", forward),
    ],
)
def test_gradient_as_a_loss_over_samples_of_the_policy(
    name: str, divergence: Callable[[Tensor, Tensor], Tensor]
) -> None:
    logits, reference = distributions()
    policy = logits.log_softmax(0)
    share = policy.detach().exp()  # how often each token is sampled: no gradient flows through sampling
    (found,) = torch.autograd.grad((share * ESTIMATORS[name](policy, reference, policy.detach())).sum(), logits)
    (wanted,) = torch.autograd.grad(divergence(logits.log_softmax(0), reference), logits)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


def test_off_policy_the_weighted_one_is_unbiased() -> None:
    logits, reference = distributions()
    policy = logits.log_softmax(0)
    sampler = torch.randn(6, dtype=torch.float64).log_softmax(0)
    expected = (sampler.exp() * ESTIMATORS["k3_is"](policy, reference, sampler)).sum()
    torch.testing.assert_close(expected, forward(policy, reference))
    (found,) = torch.autograd.grad(expected, logits)
    (wanted,) = torch.autograd.grad(forward(logits.log_softmax(0), reference), logits)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)

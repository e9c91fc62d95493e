"""KL estimators by enumeration over a vocabulary of six: what they expect to be, and where their gradients point."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gym_core import GymError, load_recipe
from gym_rl.formulas.kl import ESTIMATORS, adapted_coefficient
from gym_testkit.bench import Bench


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


def test_the_coefficient_is_adapted_as_in_the_paper() -> None:
    for kl, factor in ((6.0, 1.0), (60.0, 1.002), (0.0, 0.998), (6.6, 1.001), (-3.0, 0.998)):
        assert adapted_coefficient(0.2, kl, 6.0, 100, 10_000) == pytest.approx(0.2 * factor, rel=1e-12)
    assert adapted_coefficient(0.2, 0.0, 6.0, 10**6, 10.0) == pytest.approx(0.16), "never below 0"


def test_it_is_that_of_each_round(bench: Bench) -> None:
    options = {"name": "ppo", "rewards": [{"name": "regex", "pattern": "[a-m]$"}], "max_new_tokens": 8, "beta": 0.1}
    asked = bench.recipe(
        options | {"kl_target": 0.5, "kl_horizon": 40.0, "num_mini_batches": 2},
        "prompt",
        max_steps=8,
        save_every=1,
        batch_size=4,
        learning_rate=0.01,
        keep_last=9,
    )
    whole = bench.run(asked, "whole")
    beta, rounds = 0.1, whole.series("kl_coef")[::2]
    for number, used in enumerate(rounds):
        assert used == pytest.approx(beta, rel=1e-12)
        kept = load_file(whole.outcome.output / "checkpoints" / f"step-{2 * number + 1:08d}" / "source.safetensors")
        away = (kept["columns/old_log_probs"] - kept["columns/ref_log_probs"]).double()
        kl = float(away.sum() / len(kept["lengths"]))
        beta *= 1 + min(max(kl / 0.5 - 1, -0.2), 0.2) * 8 / 40
    assert len(set(rounds)) == 4
    with pytest.raises(GymError, match="k1_in_reward"):
        load_recipe(bench.recipe(options | {"kl_target": 0.5, "kl_estimator": "k3"}, "prompt"))

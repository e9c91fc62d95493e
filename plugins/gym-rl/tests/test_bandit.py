"""Every combination that is an algorithm finds the best of ten arms, with every seed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gym_rl_losses import clipped_completions, clipped_tokens, weighted_completions
from torch import Tensor

from gym_rl.formulas import advantages, policy_losses

ARMS, STEPS, RATE, GROUPS, SIZE = 10, 300, 3.0, 4, 8
OWNER = torch.arange(GROUPS * SIZE)
GROUP = OWNER // SIZE
Pull = Callable[[Tensor, Tensor, Tensor], Tensor]

#: advantages of rewards, and the loss of answers of one token
ALGORITHMS: dict[str, tuple[Callable[[Tensor], Tensor], Pull]] = {
    "grpo": (lambda r: advantages.grpo(r, GROUP), lambda p, q, a: clipped_tokens(p, q, a, 0.2, 0.2)),
    "dr_grpo": (lambda r: advantages.dr_grpo(r, GROUP), lambda p, q, a: clipped_tokens(p, q, a, 0.2, 0.2)),
    "bnpo": (
        lambda r: advantages.bnpo(r.clamp(0, 1), GROUP),
        lambda p, q, a: clipped_tokens(p, q, a, 0.2, 0.2),
    ),
    "dapo": (lambda r: advantages.grpo(r, GROUP), lambda p, q, a: clipped_tokens(p, q, a, 0.2, 0.28)),
    "gspo": (
        lambda r: advantages.grpo(r, GROUP),
        lambda p, q, a: clipped_completions(p, q, a, OWNER, len(OWNER), 3e-4, 4e-4),
    ),
    "gspo_token": (
        lambda r: advantages.grpo(r, GROUP),
        lambda p, q, a: policy_losses.gspo_token(p, q, a, OWNER, len(OWNER), 3e-4, 4e-4),
    ),
    "cispo": (lambda r: advantages.grpo(r, GROUP), lambda p, q, a: policy_losses.cispo(p, q, a, 5.0)),
    "sapo": (lambda r: advantages.grpo(r, GROUP), policy_losses.sapo),
    "vespo": (
        lambda r: advantages.grpo(r, GROUP),
        lambda p, q, a: weighted_completions(p, q, a, OWNER, len(OWNER)),
    ),
    "gmpo": (
        lambda r: advantages.grpo(r, GROUP),
        lambda p, q, a: policy_losses.gmpo(p, q, a, OWNER, len(OWNER), 0.4, 0.4),
    ),
    "rloo": (lambda r: advantages.rloo(r, GROUP), lambda p, q, a: policy_losses.reinforce(p, a)),
    "reinforce++": (advantages.whiten, lambda p, q, a: clipped_tokens(p, q, a, 0.2, 0.2)),
    "reinforce++-baseline": (
        lambda r: advantages.reinforce_pp_baseline(r, GROUP),
        lambda p, q, a: clipped_tokens(p, q, a, 0.2, 0.2),
    ),
    "opo": (
        lambda r: advantages.opo(r, GROUP, torch.ones_like(r)),
        lambda p, q, a: policy_losses.reinforce(p, a),
    ),
    "gdpo": (
        lambda r: advantages.gdpo(r[:, None], torch.ones(1), GROUP),
        lambda p, q, a: clipped_tokens(p, q, a, 0.2, 0.2),
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_best_arm_is_found_with_every_seed(name: str) -> None:
    judge, loss = ALGORITHMS[name]
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        means = torch.randperm(ARMS, generator=draw) / (ARMS - 1)  # 0 to 1
        logits = torch.zeros(ARMS, requires_grad=True)
        for _ in range(STEPS):
            with torch.no_grad():
                arms = torch.multinomial(logits.softmax(0), len(OWNER), replacement=True, generator=draw)
                rewards = means[arms] + 0.1 * torch.randn(len(OWNER), generator=draw)
                old = logits.log_softmax(0)[arms]
            value = loss(logits.log_softmax(0)[arms], old, judge(rewards)).mean()
            (slope,) = torch.autograd.grad(value, logits)
            logits = (logits.detach() - RATE * slope).requires_grad_()
        assert float(logits.detach().softmax(0)[means.argmax()]) >= 0.95, seed


def test_the_best_arm_is_found_by_what_a_critic_expects() -> None:
    """PPO: four updates to each round of answers, and a critic that has one number to learn."""
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        means = torch.randperm(ARMS, generator=draw) / (ARMS - 1)
        logits, value = torch.zeros(ARMS, requires_grad=True), torch.zeros((), requires_grad=True)
        for _ in range(STEPS // 4):
            with torch.no_grad():
                arms = torch.multinomial(logits.softmax(0), len(OWNER), replacement=True, generator=draw)
                rewards = means[arms] + 0.1 * torch.randn(len(OWNER), generator=draw)
                old, before = logits.log_softmax(0)[arms], value.expand(len(OWNER)).clone()
                surprise = advantages.gae(rewards, before, OWNER, len(OWNER))
                better, returns = advantages.whiten(surprise), surprise + before
            for _ in range(4):
                loss = clipped_tokens(logits.log_softmax(0)[arms], old, better, 0.2, 0.2).mean()
                loss = loss + policy_losses.value_loss(value.expand(len(OWNER)), before, returns, 0.2).mean() / 2
                slopes = torch.autograd.grad(loss, (logits, value))
                logits = (logits.detach() - RATE * slopes[0]).requires_grad_()
                value = (value.detach() - 0.5 * slopes[1]).requires_grad_()
        assert float(logits.detach().softmax(0)[means.argmax()]) >= 0.95, seed
        assert abs(float(value.detach()) - 1) < 0.2, seed

"""The entropy bonus and the KL divergence over the whole vocabulary: against formulas in float64, of the whole distributions and
of the part that could be drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gym_rl_bench import algorithm
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_rewards import Length
from gym_rl import PPO
from gym_rl.critic import ActorCritic
from gym_rl.objective import PolicyObjective
from gym_rl.ppo import PPOLoss
from gym_rl.rollouts.experience import Rollout
from gym_rl.unclipped_objective import Reinforce
from gym_torch.batch import Piece
from gym_torch.policy import Policy
from gym_torch.reference import Scorer

COEF = 0.3
CUT = 5  #: tokens that could be drawn, where not all could


def answers(cut: bool = False) -> list[Rollout]:
    random, made = np.random.default_rng(0), []
    for number, length in enumerate((4, 1, 7)):
        prompt = Piece(f"row {number}", random.integers(3, 60, 5).astype(np.int32), np.zeros(5, bool))
        said = random.integers(3, 60, length).astype(np.int32)
        names = ("sampling_log_probs", "old_log_probs", "advantages", "values", "returns")
        columns: dict[str, Any] = {name: random.uniform(-3, -1, length).astype(np.float32) for name in names}
        others = [np.append(token, random.choice(np.arange(60, 99), CUT - 1, False)) for token in said]
        if cut:
            columns["nucleus_size"] = np.full(length, CUT)
        drawable = np.concatenate(others).astype(np.int32) if cut else None
        made.append(Rollout(str(number), number, prompt, said, np.ones(length, bool), columns, nucleus=drawable))
    return made


def entropies(model: PreTrainedModel, given: Sequence[Rollout]) -> Tensor:
    """Return the summed entropies at all tokens, in the precision of the model."""
    total = torch.zeros((), dtype=torch.float64)
    for answer in given:
        text = answer.prompt.tokens.tolist() + answer.tokens.tolist()
        logits = model(input_ids=torch.tensor([text])).logits[0, 4:-1]
        for place, row in enumerate(logits):
            if answer.nucleus is not None:
                row = row[torch.tensor(answer.nucleus[CUT * place : CUT * (place + 1)].tolist())]
            total = total + torch.distributions.Categorical(logits=row).entropy()
    return total


def divergences(model: PreTrainedModel, reference: PreTrainedModel, given: Sequence[Rollout]) -> Tensor:
    """Return the summed KL(model || reference) at all tokens, in the precision of the models."""
    total = torch.zeros((), dtype=torch.float64)
    for answer in given:
        text = torch.tensor([answer.prompt.tokens.tolist() + answer.tokens.tolist()])
        own, other = (each(input_ids=text).logits[0, 4:-1] for each in (model, reference))
        for place, (row, known) in enumerate(zip(own, other.detach(), strict=True)):
            chosen = torch.arange(min(len(row), len(known)))
            if answer.nucleus is not None:
                chosen = torch.tensor(answer.nucleus[CUT * place : CUT * (place + 1)].tolist())
            pair = [torch.distributions.Categorical(logits=each[chosen]) for each in (row, known)]
            total = total + torch.distributions.kl_divergence(*pair)
    return total


def other_model(path: Path) -> PreTrainedModel:
    """Return a model of other weights, with more rows than the tokenizer has tokens."""
    made: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path)
    made.resize_token_embeddings(made.config.vocab_size + 8)
    torch.manual_seed(1)
    for weight in made.parameters():
        weight.data += 0.05 * torch.randn_like(weight)
    return made


@pytest.mark.parametrize("cut", [False, True], ids=["all tokens", "those that could be drawn"])
@pytest.mark.parametrize("chunk", [256, 3])
def test_the_divergence_and_its_gradient_agree_with_the_formula_in_float64(
    model_path: Path, cut: bool, chunk: int
) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    exact, other = AutoModelForCausalLM.from_pretrained(model_path).double(), other_model(model_path)
    found = []
    for beta in (COEF, 0.0):
        config = algorithm(beta=beta, **({"kl_estimator": "full"} if beta else {}))  # type: ignore[arg-type]
        objective: PolicyObjective = Reinforce(config)
        policy = objective.policy(model)
        policy.chunk, policy.reference = chunk, Scorer(Policy(other))
        loss, metrics = objective.loss(policy, objective.collate(answers(cut)))
        found.append((loss.detach(), gradients(loss, model), metrics))
    (with_it, rising, metrics), (without, rest, _) = found
    wanted = COEF * divergences(exact, other.double(), answers(cut))
    assert float(with_it - without) == pytest.approx(float(wanted.detach()), rel=1e-4)
    total, count = map(float, metrics["kl"].numbers())
    assert COEF * total == pytest.approx(float(wanted.detach()), rel=1e-4) and count == 12
    for one, before, slope in zip(rising, rest, gradients(wanted, exact), strict=True):
        assert ((one - before).double() - slope).norm() <= 1e-4 * slope.norm() + 1e-5


@pytest.mark.parametrize("coef", [0.0, COEF])
def test_a_policy_is_not_apart_from_itself(model_path: Path, coef: float) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    objective = PPOLoss(PPO(rewards=[Length()], kl_estimator="full", beta=1.0, entropy_coef=coef))
    policy = ActorCritic(model, auxiliary=objective.auxiliary_modules(model))
    policy.reference = Scorer(policy)
    _, metrics = objective.loss(policy, objective.collate(answers()))
    assert float(next(iter(metrics["kl"].numbers()))) == 0


def gradients(loss: Tensor, model: PreTrainedModel) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("cut", [False, True], ids=["all tokens", "those that could be drawn"])
@pytest.mark.parametrize("chunk", [256, 3])
def test_value_and_gradient_agree_with_the_formula_in_float64(model_path: Path, cut: bool, chunk: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    exact = AutoModelForCausalLM.from_pretrained(model_path).double()
    found = []
    for coef in (COEF, 0.0):
        objective: PolicyObjective = Reinforce(algorithm(entropy_coef=coef))
        policy = objective.policy(model)
        policy.chunk = chunk
        loss, _ = objective.loss(policy, objective.collate(answers(cut)))
        found.append((loss.detach(), gradients(loss, model)))
    (with_it, rising), (without, rest) = found
    wanted = -COEF * entropies(exact, answers(cut))
    assert float(with_it - without) == pytest.approx(float(wanted.detach()), rel=1e-4)
    for one, other, slope in zip(rising, rest, gradients(wanted, exact), strict=True):
        assert ((one - other).double() - slope).norm() <= 1e-4 * slope.norm() + 1e-5


def test_a_critic_beside_it_changes_nothing(model_path: Path) -> None:
    model, losses = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32), []
    for coef in (COEF, 0.0):
        objective = PPOLoss(PPO(rewards=[Length()], entropy_coef=coef))
        torch.manual_seed(0)
        policy = ActorCritic(model, auxiliary=objective.auxiliary_modules(model))
        loss, metrics = objective.loss(policy, objective.collate(answers()))
        losses.append((float(loss.detach()), [float(each) for each in metrics["value_loss"].numbers()]))
    wanted = COEF * float(entropies(model.double(), answers()).detach())
    assert losses[1][0] - losses[0][0] == pytest.approx(wanted, rel=1e-4)
    assert losses[0][1] == losses[1][1]

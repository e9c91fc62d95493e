"""The entropy bonus and the KL divergence over the whole vocabulary: against formulas in float64, of the whole distributions and
of the part that could be drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gym_rl_bench import algorithm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core import GymError, load_recipe
from gym_rewards import Length
from gym_rl import PPO
from gym_rl.critic import ActorCritic
from gym_rl.formulas.entropy import active_coefficient, adapted_coefficient
from gym_rl.objective import PolicyObjective
from gym_rl.policy import Entropies
from gym_rl.ppo import PPOLoss
from gym_rl.rollouts.experience import ENTROPY_COEF, Experience, Rollout
from gym_rl.rollouts.high_entropy import CHOSEN, ENTROPIES, choose_high_entropy
from gym_rl.unclipped_objective import Reinforce
from gym_testkit.bench import Bench
from gym_torch.batch import Piece
from gym_torch.policy import Policy
from gym_torch.reference import Scorer

COEF = 0.3
CUT = 5  #: tokens that could be drawn, where not all could


def answers(cut: bool = False, coef: float = 0.0) -> list[Rollout]:
    random, made = np.random.default_rng(0), []
    for number, length in enumerate((4, 1, 7)):
        prompt = Piece(f"row {number}", random.integers(3, 60, 5).astype(np.int32), np.zeros(5, bool))
        said = random.integers(3, 60, length).astype(np.int32)
        names = ("sampling_log_probs", "old_log_probs", "advantages", "values", "returns")
        columns: dict[str, Any] = {name: random.uniform(-3, -1, length).astype(np.float32) for name in names}
        others = [np.append(token, random.choice(np.arange(60, 99), CUT - 1, False)) for token in said]
        if coef:
            columns[ENTROPY_COEF] = np.full(length, coef, np.float32)
        if cut:
            columns["nucleus_size"] = np.full(length, CUT)
        drawable = np.concatenate(others).astype(np.int32) if cut else None
        made.append(Rollout(str(number), number, prompt, said, np.ones(length, bool), columns, nucleus=drawable))
    return made


def entropies(model: PreTrainedModel, rows: Sequence[Rollout], summed: bool = True) -> Tensor:
    """Return the entropies at all tokens, summed or each, in the precision of the model."""
    found = []
    for answer in rows:
        text = answer.prompt.tokens.tolist() + answer.tokens.tolist()
        logits = model(input_ids=torch.tensor([text])).logits[0, 4:-1]
        for place, row in enumerate(logits):
            if answer.nucleus is not None:
                row = row[torch.tensor(answer.nucleus[CUT * place : CUT * (place + 1)].tolist())]
            found.append(torch.distributions.Categorical(logits=row).entropy())
    return torch.stack(found).sum() if summed else torch.stack(found)


def divergences(model: PreTrainedModel, reference: PreTrainedModel, rows: Sequence[Rollout]) -> Tensor:
    """Return the summed KL(model || reference) at all tokens, in the precision of the models."""
    total = torch.zeros((), dtype=torch.float64)
    for answer in rows:
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
    objective = PPOLoss(PPO(rewards=[Length()], kl_estimator="full", beta=1.0))
    policy = ActorCritic(model, auxiliary=objective.auxiliary_modules(model))
    policy.reference = Scorer(policy)
    _, metrics = objective.loss(policy, objective.collate(answers(coef=coef)))
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
        objective: PolicyObjective = Reinforce(algorithm())
        policy = objective.policy(model)
        policy.chunk = chunk
        loss, _ = objective.loss(policy, objective.collate(answers(cut, coef)))
        found.append((loss.detach(), gradients(loss, model)))
    (with_it, rising), (without, rest) = found
    wanted = -COEF * entropies(exact, answers(cut))
    assert float(with_it - without) == pytest.approx(float(wanted.detach()), rel=1e-4)
    for one, other, slope in zip(rising, rest, gradients(wanted, exact), strict=True):
        assert ((one - other).double() - slope).norm() <= 1e-4 * slope.norm() + 1e-5


def test_a_critic_beside_it_changes_nothing(model_path: Path) -> None:
    model, losses = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32), []
    for coef in (COEF, 0.0):
        objective = PPOLoss(PPO(rewards=[Length()]))
        torch.manual_seed(0)
        policy = ActorCritic(model, auxiliary=objective.auxiliary_modules(model))
        loss, metrics = objective.loss(policy, objective.collate(answers(coef=coef)))
        losses.append((float(loss.detach()), [float(each) for each in metrics["value_loss"].numbers()]))
    wanted = COEF * float(entropies(model.double(), answers()).detach())
    assert losses[1][0] - losses[0][0] == pytest.approx(wanted, rel=1e-4)
    assert losses[0][1] == losses[1][1]


@pytest.mark.parametrize("cut", [False, True], ids=["all tokens", "those that could be drawn"])
def test_only_tokens_of_high_entropy_are_learnt_from(model_path: Path, cut: bool) -> None:
    """The entropies are those in float64, and tokens of lower entropy have no loss and no gradient."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    exact = AutoModelForCausalLM.from_pretrained(model_path).double()
    rows = answers(cut)
    each = torch.cat([entropies(exact, [answer], False).detach() for answer in rows])
    objective: PolicyObjective = Reinforce(algorithm())
    policy = objective.policy(model)
    found = Entropies(policy)(objective.collate(rows))  # type: ignore[arg-type]
    torch.testing.assert_close(found.double(), each, rtol=0, atol=1e-4)
    kept = each >= each.sort(descending=True).values[3]
    ends = np.cumsum([len(answer.tokens) for answer in rows])[:-1]
    marked = [
        replace(answer, columns={**answer.columns, CHOSEN: own})
        for answer, own in zip(rows, np.split(kept.numpy(), ends), strict=True)
    ]
    bare = [
        replace(answer, columns={**answer.columns, "advantages": own})
        for answer, own in zip(
            rows, np.split(objective.collate(rows).advantages.where(kept, 0.0).numpy(), ends), strict=True
        )
    ]
    (one, slopes), (other, wanted) = (
        (loss.detach(), gradients(loss, model))
        for loss in (objective.loss(policy, objective.collate(made))[0] for made in (marked, bare))
    )
    assert torch.equal(one, other)
    assert all(map(torch.equal, slopes, wanted))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 9, width=32) | st.just(math.nan), min_size=8, max_size=8), st.floats(0.01, 1.0))
def test_the_tokens_of_high_entropy_are_those_that_trl_takes(found: list[float], share: float) -> None:
    grpo = pytest.importorskip("trl").GRPOTrainer
    column, counted = torch.tensor(found), torch.tensor([True] * 6 + [False] * 2)
    held = Experience(*[torch.tensor(0)] * 7, columns={ENTROPIES: column})
    chosen = choose_high_entropy(held, counted, share).columns[CHOSEN]
    alone = SimpleNamespace(pad_across_processes=lambda tensor, **_: tensor, gather=lambda tensor: tensor)
    known = counted & ~column.isnan()
    wanted = grpo.get_high_entropy_mask(
        SimpleNamespace(accelerator=alone), column.nan_to_num()[None], known[None], 1 - share
    )
    ties = (column - torch.quantile(column[known], 1 - share)).abs() < 1e-5 if known.any() else known
    assert torch.equal((chosen & known)[~ties], wanted[0][~ties])
    assert ENTROPIES not in choose_high_entropy(held, counted, share).columns


@pytest.mark.parametrize("name", ["grpo", "gspo", "ppo"])
def test_runs_learn_from_a_share_of_their_tokens(bench: Bench, name: str) -> None:
    """The rest has no part in the gradient: with a share so small that no more than a few tokens are left, it is another one."""
    options = {
        "name": name,
        "rewards": [{"name": "regex", "pattern": "[a-m]$"}],
        "group_size": 4,
        "max_new_tokens": 24,
    }
    lines = []
    for share in (1.0, 0.2):
        asked = bench.recipe(options | {"top_entropy_quantile": share, "num_mini_batches": 2}, "prompt", max_steps=2)
        lines.append(bench.run(asked, f"run-{share}").series("grad_norm"))
    assert lines[0][0] != lines[1][0] > 0


def test_a_coefficient_is_that_of_the_paper() -> None:
    """Skywork-OR1: one more or less each round, within bounds, and no bonus where the entropy is high enough."""
    coef, used = 0.0, []
    for found in (0.3, 0.1, 0.2, 0.1, 0.3, 0.1, 0.1):
        used.append(active_coefficient(coef, found, 0.2))
        coef = adapted_coefficient(coef, found, 0.2, 0.005, 0.0, 0.012)
    assert used == pytest.approx([0.0, 0.0, 0.005, 0.01, 0.0, 0.007, 0.012]) and coef == 0.012


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_the_coefficient_is_adapted_round_by_round(bench: Bench, name: str) -> None:
    """Rounds below the target have a bonus that grows, and their steps learn from it."""
    options = {"name": name, "rewards": [{"name": "regex", "pattern": "[a-m]$"}], "group_size": 4, "max_new_tokens": 8}
    made = {}
    for target in (99.0, 0.001, None):
        adapted = (
            {} if target is None else {"entropy_target": target, "entropy_coef_delta": 0.5, "entropy_coef_max": 0.75}
        )
        asked = bench.recipe(options | {"num_mini_batches": 2} | adapted, "prompt", max_steps=8)
        made[target] = bench.run(asked, f"run-{target}")
    assert made[99.0].series("entropy_coef") == [0, 0, 0.5, 0.5, 0.75, 0.75, 0.75, 0.75]
    assert made[0.001].series("entropy_coef") == [0] * 8 and not made[None].series("entropy_coef")
    norms = {target: run.series("grad_norm") for target, run in made.items()}
    assert norms[0.001] == norms[None] and norms[99.0][:2] == norms[None][:2] and norms[99.0][2] != norms[None][2]
    for wrong in ({"entropy_coef_max": 0.5}, {"entropy_target": 1.0, "entropy_coef": 2.0}):
        with pytest.raises(GymError, match="entropy_coef"):
            load_recipe(bench.recipe(options | wrong, "prompt"))

"""Losses of whole steps against their formulas, answer by answer and in float64; GSPO-token is GSPO."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_gspo import GSPO, LUSPO, VESPO, GSPOToken
from gym_gspo.objective import GSPOTokenLoss, VESPOLoss
from gym_rewards import Length
from gym_rl.clipped_objectives import ClippedSequences
from gym_rl.rollouts.experience import Rollout
from gym_testkit import tiny
from gym_torch.batch import Piece
from gym_torch.policy import Policy

torch.set_num_threads(1)
BOUNDS = {"epsilon": 0.05, "epsilon_high": 0.08}
REWARDS = [Length()]
OBJECTIVES = {
    "gspo": ClippedSequences(GSPO(rewards=REWARDS, **BOUNDS)),
    "gspo_token": GSPOTokenLoss(GSPOToken(rewards=REWARDS, **BOUNDS)),
    "luspo": ClippedSequences(LUSPO(rewards=REWARDS, **BOUNDS)),
}


@pytest.fixture
def model(tmp_path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny.write_model(tmp_path / "model", 0), dtype=torch.float32)


def answers(model: PreTrainedModel) -> list[Rollout]:
    """Four answers to four prompts, sampled by a policy that was a little different."""
    random = np.random.default_rng(0)
    made = []
    for number, length in enumerate((4, 1, 7, 2)):
        prompt = Piece(f"row {number}", random.integers(3, 60, 5).astype(np.int32), np.zeros(5, bool))
        said = random.integers(3, 60, length).astype(np.int32)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt.tokens.tolist(), *said.tolist()]])).logits[0, 4:-1]
        scores = logits.log_softmax(1).gather(1, torch.tensor(said, dtype=torch.long)[:, None])[:, 0].numpy()
        sampled = (scores + random.normal(0, 0.2, length)).astype(np.float32)
        columns = {
            "sampling_log_probs": sampled,
            "old_log_probs": sampled,
            "advantages": np.full(length, random.normal(), np.float32),
        }
        made.append(Rollout(str(number), number, prompt, said, np.ones(length, bool), columns))
    return made


def scores(exact: PreTrainedModel, answer: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each token of an answer, in float64, and the one that it was sampled with."""
    text = answer.prompt.tokens.tolist() + answer.tokens.tolist()
    logits = exact(input_ids=torch.tensor([text])).logits[0, 4:-1]
    found = logits.log_softmax(1).gather(1, torch.tensor(answer.tokens, dtype=torch.long)[:, None])[:, 0]
    return found, torch.tensor(answer.columns["sampling_log_probs"].tolist(), dtype=torch.float64)


def same(model: PreTrainedModel, loss: torch.Tensor, exact: PreTrainedModel, wanted: torch.Tensor) -> None:
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    loss.backward()
    wanted.backward()
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        assert (ours.grad.double() - theirs.grad).norm() <= 1e-4 * theirs.grad.norm() + 1e-9


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_gradient_agree_with_the_formula_in_float64(model: PreTrainedModel, name: str) -> None:
    """LUSPO (arXiv:2602.05261) counts a completion as often as it has tokens."""
    objective, exact, given = OBJECTIVES[name], copy.deepcopy(model).double(), answers(model)
    batch = objective.collate(given)
    loss, metrics = objective.loss(Policy(model), batch)
    wanted, held, lost = torch.zeros((), dtype=torch.float64), 0, 0
    for answer in given:
        now, old = scores(exact, answer)
        ratio = torch.exp((now - old).mean())
        bounded = torch.clamp(ratio, 0.95, 1.08)
        held += not math.isclose(float(ratio.detach()), float(bounded.detach()))
        advantage = float(answer.columns["advantages"][0])
        times = len(answer.tokens) if name == "luspo" else 1
        wanted = wanted - times * torch.minimum(ratio * advantage, bounded * advantage)
        lost += len(answer.tokens) * bool(bounded * advantage < ratio * advantage)
    assert 0 < held < 4, "some ratios should be clipped, and some not"
    assert objective.weight(batch) == 4
    assert [float(each) for each in metrics["clip_ratio/region_mean"].numbers()] == [lost, 14]
    same(model, loss, exact, wanted)


def test_vespo_agrees_with_the_formula_in_float64(model: PreTrainedModel) -> None:
    """The sampler is the one to compare with, not the trainer when the round began."""
    objective = VESPOLoss(VESPO(rewards=REWARDS, vespo_k_pos=1.5, vespo_lambda_neg=2.5))
    exact = copy.deepcopy(model).double()
    given = [having(one, old_log_probs=one.columns["old_log_probs"] - 1) for one in answers(model)]
    batch = objective.collate(given)
    loss, metrics = objective.loss(Policy(model), batch)
    wanted, weights, signs = torch.zeros((), dtype=torch.float64), 0.0, set()
    for answer in given:
        now, sampled = scores(exact, answer)
        whole, advantage = math.exp(float((now.detach() - sampled).sum())), float(answer.columns["advantages"][0])
        power, decay = (1.5, 3.0) if advantage > 0 else (3.0, 2.5)
        weight = whole**power * math.exp(decay * (1 - whole))
        wanted, weights = wanted - weight * advantage * now.sum(), weights + len(answer.tokens) * weight
        signs.add(advantage > 0)
    assert signs == {True, False}
    assert objective.weight(batch) == 14
    assert [float(each) for each in metrics["vespo/phi_seq_mean"].numbers()] == pytest.approx([weights, 14])
    same(model, loss, exact, wanted)


def test_a_weight_of_its_own_is_not_corrected_once_more() -> None:
    with pytest.raises(ValueError, match="none"):
        VESPO(rewards=REWARDS, importance_sampling_correction="tis")


def having(answer: Rollout, **columns: np.ndarray) -> Rollout:
    return replace(answer, columns={**answer.columns, **columns})

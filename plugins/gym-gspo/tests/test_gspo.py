"""The loss of whole steps against its formula, answer by answer and in float64; and GSPO-token, which is the same."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_gspo import GSPO, GSPOToken
from gym_gspo.objective import GSPOLoss, GSPOTokenLoss
from gym_rewards import Length
from gym_rl.objective import PolicyObjective
from gym_rl.rollouts.experience import Rollout
from gym_testkit import tiny
from gym_torch.batch import Piece
from gym_torch.policy import Policy

torch.set_num_threads(1)
BOUNDS = {"epsilon": 0.05, "epsilon_high": 0.08}
OBJECTIVES = [GSPOLoss(GSPO(rewards=[Length()], **BOUNDS)), GSPOTokenLoss(GSPOToken(rewards=[Length()], **BOUNDS))]


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


@pytest.mark.parametrize("objective", OBJECTIVES, ids=["gspo", "gspo_token"])
def test_loss_and_gradient_agree_with_the_formula_in_float64(
    model: PreTrainedModel, objective: PolicyObjective
) -> None:
    exact, given = copy.deepcopy(model).double(), answers(model)
    batch = objective.collate(given)
    loss, metrics = objective.loss(Policy(model), batch)
    wanted, held, lost = torch.zeros((), dtype=torch.float64), 0, 0
    for answer in given:
        text = answer.prompt.tokens.tolist() + answer.tokens.tolist()
        logits = exact(input_ids=torch.tensor([text])).logits[0, 4:-1]
        scores = logits.log_softmax(1).gather(1, torch.tensor(answer.tokens, dtype=torch.long)[:, None])[:, 0]
        ratio = torch.exp((scores - torch.tensor(answer.columns["old_log_probs"].tolist(), dtype=torch.float64)).mean())
        bounded = torch.clamp(ratio, 0.95, 1.08)
        held += not math.isclose(float(ratio.detach()), float(bounded.detach()))
        advantage = float(answer.columns["advantages"][0])
        wanted = wanted - torch.minimum(ratio * advantage, bounded * advantage)
        lost += len(answer.tokens) * bool(bounded * advantage < ratio * advantage)
    assert 0 < held < 4, "some ratios should be clipped, and some not"
    assert objective.weight(batch) == 4
    assert [float(each) for each in metrics["clip_ratio/region_mean"].numbers()] == [lost, 14]
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    loss.backward()
    wanted.backward()
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        assert (ours.grad.double() - theirs.grad).norm() <= 1e-4 * theirs.grad.norm() + 1e-9

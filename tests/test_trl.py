"""TRL's GRPOTrainer on the same rollouts: advantages, losses and gradients of every loss that both have.

TRL gets tokens and rewards through its own `rollout_func` and reward function, and computes everything else itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from gym_core.component import load_object
from gym_grpo import CISPO, DAPO, GDPO, GRPO, SAPO, DrGRPO
from gym_grpo.objective import CISPOLoss, SAPOLoss
from gym_gspo import GSPO, LUSPO, VESPO
from gym_gspo.objective import VESPOLoss
from gym_rewards import Length
from gym_rl.clipped_objectives import ClippedSequences, ClippedTokens
from gym_rl.objective import PolicyObjective
from gym_rl.rollouts.experience import Experience, Rollout
from gym_sft import SFT
from gym_sft.distillation import divergence
from gym_sft.objective import NextToken
from gym_testkit import tiny
from gym_torch.batch import Piece
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED, PADDED
from gym_torch.policy import Policy

pytestmark = pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")
torch.set_num_threads(1)
REWARDS, GROUP, LONGEST = [Length()], 4, 9
POLICY, OLDER = 1, 2  #: seeds of the policy that learns and of the one that answered


@dataclass(frozen=True)
class Case:
    """One loss: how TRL is asked for it, and what it is here."""

    asked: dict[str, Any]
    objective: PolicyObjective
    passes: tuple[int, ...] = (1, 2)  #: in how many passes a step may be taken


CASES = {
    "grpo": Case({"loss_type": "grpo"}, ClippedTokens(GRPO(rewards=REWARDS), PACKED)),
    "grpo with kl": Case({"loss_type": "grpo", "beta": 0.1}, ClippedTokens(GRPO(rewards=REWARDS, beta=0.1), PACKED)),
    "grpo with dual clip": Case({"loss_type": "grpo", "delta": 1.3}, ClippedTokens(GRPO(rewards=REWARDS, delta=1.3), PACKED)),
    "grpo with an off-policy mask": Case(
        {"loss_type": "grpo", "off_policy_mask_threshold": 0.01, "beta": 0.1},
        ClippedTokens(GRPO(rewards=REWARDS, off_policy_mask_threshold=0.01, beta=0.1), PACKED),
    ),
    "dr_grpo": Case(
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
        ClippedTokens(DrGRPO(rewards=REWARDS, max_new_tokens=LONGEST), PACKED),
    ),
    "dr_grpo scaled by groups": Case(
        {"loss_type": "dr_grpo"},
        ClippedTokens(DrGRPO(rewards=REWARDS, max_new_tokens=LONGEST, scale_rewards="group"), PACKED),
    ),
    "grpo scaled by the round": Case(
        {"loss_type": "grpo", "scale_rewards": "batch"}, ClippedTokens(GRPO(rewards=REWARDS, scale_rewards="batch"), PACKED)
    ),
    "dapo": Case({"loss_type": "dapo", "epsilon_high": 0.28}, ClippedTokens(DAPO(rewards=REWARDS), PACKED)),
    "dapo with k3": Case(
        {"loss_type": "dapo", "epsilon_high": 0.28, "beta": 0.1, "use_bias_correction_kl": False},
        ClippedTokens(DAPO(rewards=REWARDS, beta=0.1, kl_estimator="k3"), PACKED),
    ),
    "dapo by itself": Case({"loss_type": "dapo"}, ClippedTokens(GRPO(rewards=REWARDS, loss_agg_mode="token-mean"), PACKED)),
    # TRL's mean is over the tokens of a pass, so a step of several passes depends on how it is cut.
    "bnpo": Case(
        {"loss_type": "bnpo"}, ClippedTokens(GRPO(rewards=REWARDS, loss_agg_mode="token-mean"), PACKED), passes=(1,)
    ),
    "cispo": Case({"loss_type": "cispo", "epsilon_high": 1.1}, CISPOLoss(CISPO(rewards=REWARDS, epsilon_high=1.1), PACKED)),
    "cispo with kl": Case(
        {"loss_type": "cispo", "epsilon_high": 1.1, "beta": 0.1},
        CISPOLoss(CISPO(rewards=REWARDS, epsilon_high=1.1, beta=0.1), PACKED),
    ),
    "sapo": Case({"loss_type": "sapo"}, SAPOLoss(SAPO(rewards=REWARDS), PACKED)),
    "sapo with kl": Case(
        {"loss_type": "sapo", "sapo_temperature_pos": 0.5, "sapo_temperature_neg": 3.0, "beta": 0.1},
        SAPOLoss(SAPO(rewards=REWARDS, sapo_temperature_pos=0.5, sapo_temperature_neg=3.0, beta=0.1), PACKED),
    ),
    "gspo": Case(
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03},
        ClippedSequences(GSPO(rewards=REWARDS, epsilon=0.02, epsilon_high=0.03), PACKED),
    ),
    "gspo with dual clip": Case(
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03, "delta": 1.04},
        ClippedSequences(GSPO(rewards=REWARDS, epsilon=0.02, epsilon_high=0.03, delta=1.04), PACKED),
    ),
    "gspo scaled by nothing": Case(
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03,
         "scale_rewards": False},
        ClippedSequences(GSPO(rewards=REWARDS, epsilon=0.02, epsilon_high=0.03, scale_rewards=False), PACKED),
    ),
    # TRL would correct its KL by the ratio of whole answers.
    "gspo with k3": Case(
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03,
         "beta": 0.1, "use_bias_correction_kl": False},
        ClippedSequences(GSPO(rewards=REWARDS, epsilon=0.02, epsilon_high=0.03, beta=0.1, kl_estimator="k3"), PACKED),
    ),
    "luspo": Case(
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03},
        ClippedSequences(LUSPO(rewards=REWARDS, epsilon=0.02, epsilon_high=0.03), PACKED),
    ),
    "luspo of tokens": Case(
        {"loss_type": "luspo"}, ClippedTokens(GRPO(rewards=REWARDS, loss_agg_mode="seq-mean-token-sum"), PACKED)
    ),
    "dr_grpo of sequences": Case(
        {"loss_type": "dr_grpo", "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03},
        ClippedSequences(
            GSPO(rewards=REWARDS, epsilon=0.02, epsilon_high=0.03, max_new_tokens=LONGEST,
                 loss_agg_mode="seq-mean-token-sum-norm"), PACKED),
    ),
    "vespo": Case({"loss_type": "vespo"}, VESPOLoss(VESPO(rewards=REWARDS), PACKED)),
    "vespo with kl": Case(
        {"loss_type": "vespo", "vespo_k_pos": 1.0, "vespo_lambda_pos": 0.5, "vespo_k_neg": 0.5, "vespo_lambda_neg": 1.5,
         "beta": 0.1},
        VESPOLoss(VESPO(rewards=REWARDS, vespo_k_pos=1.0, vespo_lambda_pos=0.5, vespo_k_neg=0.5, vespo_lambda_neg=1.5,
                        beta=0.1), PACKED),
    ),
}  # fmt: skip
STEPS = [(name, passes) for name, case in CASES.items() for passes in case.passes]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("trl") / "model", 0)


def load(path: Path, seed: int = 0) -> nn.Module:
    """Return the model of the folder, or one near it; its attention goes segment by segment."""
    found = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).train()
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in found.parameters() if seed else ():
            weight += 0.1 * weight.std() * torch.randn_like(weight)
    return found


def sampled(path: Path) -> tuple[list[Rollout], list[float]]:
    """Return two groups of answers, scored by a policy near the one that learns and by the reference, and their rewards."""
    random = np.random.default_rng(0)
    answers: list[Rollout] = []
    for group, size in enumerate((5, 9)):
        prompt = Piece(f"row {group}", random.integers(3, 60, size).astype(np.int32), np.zeros(size, bool))
        for length in random.integers(1, LONGEST + 1, GROUP):
            tokens = random.integers(3, 60, length).astype(np.int32)
            answers.append(Rollout(str(len(answers)), group, prompt, tokens, np.ones(length, bool), {}))
    batch = CASES["grpo"].objective.collate(answers)
    for name, seed in {"old_log_probs": OLDER, "ref_log_probs": 0}.items():
        model = load(path, seed)
        assert layout_for(model) is PACKED
        with torch.no_grad():
            scores = Policy(model)(batch).split([len(one.tokens) for one in answers])
        answers = [having(one, {name: score.numpy()}) for one, score in zip(answers, scores, strict=True)]
    answers = [having(one, {"sampling_log_probs": one.columns["old_log_probs"]}) for one in answers]
    return answers, random.normal(size=len(answers)).round(3).tolist()


def having(answer: Rollout, columns: dict[str, np.ndarray]) -> Rollout:
    return replace(answer, columns={**answer.columns, **columns})


def trainer(
    case: Case,
    path: Path,
    answers: Sequence[Rollout],
    rewards: list[float],
    passes: int,
    output: Path,
    *more: list[float],
) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def rollouts(prompts: list[str], _trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [answer.prompt.tokens.tolist() for answer in answers],
            "completion_ids": [answer.tokens.tolist() for answer in answers],
            "logprobs": None,
        }

    def reward(scores: list[float], number: int) -> Any:
        def said(completions: list[str], **_: Any) -> list[float]:
            return scores

        said.__name__ = f"reward_{number}"
        return said

    options = GRPOConfig(
        output_dir=str(output),
        per_device_train_batch_size=len(answers) // passes,
        gradient_accumulation_steps=passes,
        num_generations=GROUP,
        max_completion_length=LONGEST,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to="none",
        **case.asked,
    )
    made = GRPOTrainer(
        model=load(path, POLICY),
        reward_funcs=[reward(scores, number) for number, scores in enumerate((rewards, *more))],
        args=options,
        train_dataset=Dataset.from_list([{"prompt": answer.prompt.id} for answer in answers]),
        processing_class=AutoTokenizer.from_pretrained(path),
        rollout_func=rollouts,
    )
    made.current_gradient_accumulation_steps = passes  # as its training loop sets it
    return made


def inputs(made: Any, answers: Sequence[Rollout], passes: int) -> list[dict[str, Any]]:
    """Let TRL score the answers, and cut them into passes as it does."""
    from trl.trainer.utils import split_tensor_dict

    found = made._generate_and_score_completions([{"prompt": answer.prompt.id} for answer in answers])
    found["old_per_token_logps"] = pad_sequence(
        [torch.from_numpy(one.columns["old_log_probs"]) for one in answers], batch_first=True
    )
    return split_tensor_dict(found, passes)


def judged(case: Case, answers: Sequence[Rollout], rewards: list[float]) -> list[Rollout]:
    """Let Gym compute the advantages."""
    credit = load_object(type(case.objective.config).credit)
    advantages = credit(round_of(answers, rewards), case.objective.config)["advantages"]
    return [
        having(one, {"advantages": np.full(len(one.tokens), each, np.float32)})
        for one, each in zip(answers, advantages.tolist(), strict=True)
    ]


def round_of(answers: Sequence[Rollout], rewards: Sequence[float], **more: Any) -> Experience:
    """Return a round whose completions have one token each, so that an advantage of a token is one of a completion."""
    return Experience(
        number=torch.tensor(0),
        groups=torch.tensor([one.group for one in answers]),
        prompts=torch.tensor([one.group for one in answers]),
        lengths=torch.ones(len(answers), dtype=torch.int64),
        tokens=torch.zeros(len(answers), dtype=torch.int32),
        finished=torch.ones(len(answers), dtype=torch.bool),
        rewards=torch.tensor(rewards, dtype=torch.float64),
        **more,
    )


@pytest.mark.parametrize(("name", "passes"), STEPS)
def test_loss_and_gradient_of_a_model_agree_with_trl(path: Path, tmp_path: Path, name: str, passes: int) -> None:
    case = CASES[name]
    answers, rewards = sampled(path)
    peer = trainer(case, path, answers, rewards, passes, tmp_path)
    parts = inputs(peer, answers, passes)
    answers = judged(case, answers, rewards)
    theirs = torch.cat([part["advantages"] for part in parts])
    torch.testing.assert_close(
        theirs, torch.tensor([one.columns["advantages"][0] for one in answers]), rtol=1e-5, atol=1e-6
    )
    wanted = sum(peer._compute_loss(peer.model, part) for part in parts)

    model = load(path, POLICY)
    assert layout_for(model) is PACKED
    policy, size = Policy(model), len(answers) // passes
    batches = [case.objective.collate(answers[start : start + size]) for start in range(0, len(answers), size)]
    weight = sum(map(case.objective.weight, batches))
    outcomes = [case.objective.loss(policy, batch) for batch in batches]
    loss = sum(outcome[0] for outcome in outcomes) / weight
    for key in outcomes[0][1].keys() & {"clip_ratio/region_mean", "cispo_clip_ratio"}:  # a soft gate has none
        clipped, tokens = map(sum, zip(*(outcome[1][key].numbers() for outcome in outcomes), strict=True))
        assert 0.01 < clipped / tokens < 0.9, "clipping is not tried"

    assert loss.item() == pytest.approx(wanted.item(), rel=1e-4, abs=1e-6)
    loss.backward()
    wanted.backward()
    for ours, other in zip(model.parameters(), peer.model.parameters(), strict=True):
        assert (ours.grad - other.grad).norm() <= 1e-4 * other.grad.norm()
        assert other.grad.norm() > 0


@pytest.mark.parametrize("name", CASES)
def test_loss_of_random_log_probabilities_agrees_with_trl(path: Path, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    answers, rewards = sampled(path)
    peer = trainer(case, path, answers, rewards, 1, tmp_path)
    (part,) = inputs(peer, answers, 1)
    mask = part["completion_mask"].bool()
    for seed in range(20):
        torch.manual_seed(seed)
        old = -3 * torch.rand(mask.shape)
        theirs = (old + 0.3 * torch.randn(mask.shape)).requires_grad_()
        part |= {"old_per_token_logps": old, "advantages": torch.randn(len(answers))}
        part["ref_per_token_logps"] = old + 0.3 * torch.randn(mask.shape)
        peer._get_per_token_logps_and_entropies = lambda *_, scores=theirs, **__: (scores, scores.detach(), None)
        wanted = peer._compute_loss(peer.model, part)

        ours = theirs.detach()[mask].requires_grad_()
        batch = case.objective.collate(answers)
        columns = {"old_log_probs": old, "sampling_log_probs": old, "ref_log_probs": part["ref_per_token_logps"]}
        batch = batch.with_columns({name: each[mask] for name, each in columns.items()})
        batch = batch.with_columns({"advantages": part["advantages"][batch.owner]})
        loss = case.objective.loss(lambda _, scores=ours: scores, batch)[0] / case.objective.weight(batch)
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-5, abs=1e-6)
        loss.backward()
        wanted.backward()
        torch.testing.assert_close(ours.grad, theirs.grad[mask], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none", True, False])
def test_advantages_of_fixed_rewards_agree_with_trl(path: Path, tmp_path: Path, scale_rewards: str | bool) -> None:
    """A completion that no reward scored is among them, and a group of equal rewards is."""
    answers, _ = sampled(path)
    rewards: list[Any] = [1.0, 0.0, None, 7.5, *[0.1] * GROUP]
    peer = trainer(Case({"scale_rewards": scale_rewards}, CASES["grpo"].objective), path, answers, rewards, 1, tmp_path)
    (part,) = inputs(peer, answers, 1)
    config = GRPO(rewards=REWARDS, scale_rewards=scale_rewards)
    experience = round_of(answers, [math.nan if reward is None else reward for reward in rewards])
    found = load_object(GRPO.credit)(experience, config)["advantages"]
    torch.testing.assert_close(found, part["advantages"], rtol=1e-5, atol=1e-6)
    assert found[:2].abs().min() > 0.1 and found[2] == 0 and not found[GROUP:].any()


def test_advantages_of_several_rewards_agree_with_trl(path: Path, tmp_path: Path) -> None:
    answers, first = sampled(path)
    second = [100.0 * (len(one.tokens) % 3) for one in answers]
    asked = {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0, 0.25]}
    peer = trainer(replace(CASES["grpo"], asked=asked), path, answers, first, 1, tmp_path, second)
    (part,) = inputs(peer, answers, 1)
    tables = {
        name: torch.tensor(said, dtype=torch.float64) for name, said in {"length": first, "length-2": second}.items()
    }
    experience = round_of(answers, (tables["length"] + 0.25 * tables["length-2"]).tolist(), scores=tables)
    found = load_object(GDPO.credit)(experience, GDPO(rewards=[Length(), Length(weight=0.25)]))["advantages"]
    torch.testing.assert_close(part["advantages"], found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_the_divergence_of_distillation_is_that_of_trl(beta: float) -> None:
    from trl.experimental.gkd import GKDTrainer

    draws = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(1, 6, 11, dtype=torch.float64, generator=draws) for _ in range(2))
    theirs = GKDTrainer.generalized_jsd_loss(student, teacher, beta=beta, temperature=0.7, reduction="sum")
    ours = divergence(*((each[0] / 0.7).log_softmax(1) for each in (student, teacher)), beta)
    torch.testing.assert_close(ours.sum(), theirs)


@pytest.mark.parametrize("bf16", [False, True])
def test_what_fine_tuning_says_of_tokens_is_what_trl_says(path: Path, bf16: bool) -> None:
    from trl.trainer.utils import add_fused_lm_head

    objective = NextToken(SFT(token_metrics=True), PADDED)
    draws = np.random.default_rng(0)
    models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for _ in range(2)]
    texts = [draws.integers(0, models[0].config.vocab_size, size).astype(np.int32) for size in (40, 17, 29)]
    for text in texts:  # half of the labels are what the model says
        guessed = models[0](torch.tensor(text[None].astype(np.int64))).logits[0].argmax(1)
        text[1::2] = guessed[:-1:2][: len(text[1::2])]
    trained = [np.arange(len(text)) % 3 > 0 for text in texts]
    batch = objective.collate([Piece(*each) for each in zip("abc", texts, trained, strict=True)])
    loss, found = objective.loss(objective.policy(models[0], "bf16" if bf16 else "fp32"), batch)
    loss.backward()

    add_fused_lm_head(models[1], outputs=("log_probs", "entropy", "is_top1"))
    ids = pad_sequence([torch.tensor(text.astype(np.int64)) for text in texts], batch_first=True)
    labels = pad_sequence(
        [torch.tensor(np.where(mask, text.astype(np.int64), -100)) for text, mask in zip(texts, trained, strict=True)],
        batch_first=True,
        padding_value=-100,
    )
    seen = pad_sequence([torch.ones(len(text), dtype=torch.int64) for text in texts], batch_first=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        theirs = models[1](input_ids=ids, attention_mask=seen, labels=labels, fused_lm_head=True)
    count = int(theirs.label_mask.sum())
    assert objective.weight(batch) == count and 0 < int(theirs.is_top1.sum()) < count
    near = 0.02 if bf16 else 1e-5
    assert found["mean_token_accuracy"].total.item() == pytest.approx(int(theirs.is_top1.sum()), abs=near * count)
    assert found["entropy"].total.item() == pytest.approx(theirs.entropy.sum().item(), rel=near)
    assert loss.item() == pytest.approx(-theirs.log_probs.sum().item(), rel=near)

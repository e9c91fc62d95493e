"""Losses of whole steps against their formulas, answer by answer and in float64, off the policy that answered."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from gym_core import GymError, load_recipe
from gym_core.component import load_object
from gym_grpo import BNPO, CISPO, DAPO, GDPO, GMPO, GRPO, SAPO, DrGRPO
from gym_grpo.objective import CISPOLoss, GMPOLoss, SAPOLoss
from gym_rewards import Length, Overlong
from gym_rl.clipped_objectives import ClippedTokens
from gym_rl.objective import PolicyObjective
from gym_rl.rollouts.experience import Experience, Rollout
from gym_testkit import tiny
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.team import start
from gym_torch.batch import Piece
from gym_torch.policy import Policy

torch.set_num_threads(1)
REWARDS = [Length()]
LONGEST = 9


def answers() -> list[Rollout]:
    random = np.random.default_rng(0)
    made = []
    for number, length in enumerate((4, 1, 7, 2)):
        tokens = random.integers(3, 60, 5).astype(np.int32)
        prompt = Piece(f"row {number // 2}", tokens if number % 2 == 0 else made[-1].prompt.tokens, np.zeros(5, bool))
        said = random.integers(3, 60, length).astype(np.int32)
        sampled = random.uniform(-6, -3, length).astype(np.float32)
        columns = {
            "sampling_log_probs": sampled,
            "old_log_probs": sampled,
            "advantages": np.full(length, random.normal(), np.float32),
        }
        made.append(Rollout(str(number), number // 2, prompt, said, np.ones(length, bool), columns))
    return made


def clipped(log_probs: Tensor, answer: Rollout, low: float, high: float, dual: float = math.inf) -> Tensor:
    """Return PPO's loss of each token, with dual clip (arXiv:1912.09729)."""
    each, advantage = [], float(answer.columns["advantages"][0])
    for log_prob, old in zip(log_probs, answer.columns["old_log_probs"].tolist(), strict=True):
        ratio = torch.exp(log_prob - old)
        bounded = torch.clamp(ratio, 1 - low, 1 + high)
        value = torch.minimum(ratio * advantage, bounded * advantage)
        each.append(-(value.clamp(min=dual * advantage) if advantage < 0 else value))
    return torch.stack(each)


def weighted(log_probs: Tensor, answer: Rollout, cap: float) -> Tensor:
    each, advantage = [], float(answer.columns["advantages"][0])
    for log_prob, old in zip(log_probs, answer.columns["old_log_probs"].tolist(), strict=True):
        each.append(-min(math.exp(float(log_prob.detach()) - old), cap) * advantage * log_prob)
    return torch.stack(each)


def gated(log_probs: Tensor, answer: Rollout, rising: float, falling: float) -> Tensor:
    """Return SAPO's loss of each token (arXiv:2511.20347)."""
    advantage = float(answer.columns["advantages"][0])
    steep, each = rising if advantage > 0 else falling, []
    for log_prob, old in zip(log_probs, answer.columns["old_log_probs"].tolist(), strict=True):
        each.append(-4 / steep / (1 + torch.exp(-steep * (torch.exp(log_prob - old) - 1))) * advantage)
    return torch.stack(each)


def geometric(log_probs: Tensor, answer: Rollout, low: float, high: float) -> Tensor:
    """Return GMPO's loss of an answer: the root of the product of what its tokens are worth (arXiv:2507.20673, equation 4)."""
    advantage, product = float(answer.columns["advantages"][0]), torch.ones((), dtype=torch.float64)
    for log_prob, old in zip(log_probs, answer.columns["old_log_probs"].tolist(), strict=True):
        ratio = torch.exp(log_prob - old)
        bounded = torch.clamp(ratio, math.exp(-low), math.exp(high))
        product = product * torch.minimum(ratio * advantage, bounded * advantage).abs()
    return -math.copysign(1, advantage) * product ** (1 / len(log_probs))


def near(log_probs: Tensor, answer: Rollout, bound: float) -> Tensor:
    """Return PPO's loss of each token, none of a bad answer that the policy left behind (arXiv:2512.02556, equation 9)."""
    left = (torch.from_numpy(answer.columns["sampling_log_probs"]).double() - log_probs.detach()).mean()
    kept = float(answer.columns["advantages"][0]) >= 0 or left <= bound
    return clipped(log_probs, answer, 0.2, 0.2) * kept


#: objective, loss of the tokens of an answer, what of it is added up, and the denominator of the step
CASES: dict[str, tuple[PolicyObjective, Callable[[Tensor, Rollout], Tensor], Callable[[Tensor], Tensor], float]] = {
    "grpo": (
        ClippedTokens(GRPO(rewards=REWARDS)),
        lambda scores, answer: clipped(scores, answer, 0.2, 0.2),
        torch.mean,
        4,
    ),
    "grpo with dual clip": (
        ClippedTokens(GRPO(rewards=REWARDS, epsilon=0.1, delta=1.15)),
        lambda scores, answer: clipped(scores, answer, 0.1, 0.1, 1.15),
        torch.mean,
        4,
    ),
    "grpo with an off-policy mask": (
        ClippedTokens(GRPO(rewards=REWARDS, off_policy_mask_threshold=2.0)),
        lambda scores, answer: near(scores, answer, 2.0),
        torch.mean,
        4,
    ),
    "grpo, every token alike": (
        ClippedTokens(GRPO(rewards=REWARDS, loss_agg_mode="token-mean")),
        lambda scores, answer: clipped(scores, answer, 0.2, 0.2),
        torch.sum,
        14,
    ),
    "dr_grpo": (
        ClippedTokens(DrGRPO(rewards=REWARDS, max_new_tokens=LONGEST)),
        lambda scores, answer: clipped(scores, answer, 0.2, 0.2),
        torch.sum,
        4 * LONGEST,
    ),
    "dapo": (
        ClippedTokens(DAPO(rewards=REWARDS)),
        lambda scores, answer: clipped(scores, answer, 0.2, 0.28),
        torch.sum,
        14,
    ),
    "bnpo": (
        ClippedTokens(BNPO(rewards=REWARDS)),
        lambda scores, answer: clipped(scores, answer, 0.2, 0.2),
        torch.sum,
        14,
    ),
    "cispo": (
        CISPOLoss(CISPO(rewards=REWARDS, epsilon_high=1.2)),
        lambda scores, answer: weighted(scores, answer, 1.2),
        torch.sum,
        14,
    ),
    "sapo": (
        SAPOLoss(SAPO(rewards=REWARDS, sapo_temperature_pos=0.7, sapo_temperature_neg=2.0)),
        lambda scores, answer: gated(scores, answer, 0.7, 2.0),
        torch.mean,
        4,
    ),
    "gmpo": (
        GMPOLoss(GMPO(rewards=REWARDS, epsilon=0.8, epsilon_high=0.3)),
        lambda scores, answer: geometric(scores, answer, 0.8, 0.3),
        torch.sum,
        4,
    ),
}
GATED = {"sapo"}  #: has no clip


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_agree_with_the_formula_in_float64(tmp_path: Path, name: str) -> None:
    objective, tokens, add, weight = CASES[name]
    model = AutoModelForCausalLM.from_pretrained(tiny.write_model(tmp_path / "model", 0), dtype=torch.float32)
    exact = copy.deepcopy(model).double()
    batch = objective.collate(answers())
    loss, _ = objective.loss(Policy(model), batch)
    wanted = torch.zeros((), dtype=torch.float64)
    for answer in answers():
        text = answer.prompt.tokens.tolist() + answer.tokens.tolist()
        logits = exact(input_ids=torch.tensor([text])).logits[0, 4:-1]
        scores = logits.log_softmax(1).gather(1, torch.tensor(answer.tokens, dtype=torch.long)[:, None])[:, 0]
        wanted = wanted + add(tokens(scores, answer))
    assert objective.weight(batch) == weight
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    loss.backward()
    wanted.backward()
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        assert (ours.grad.double() - theirs.grad).norm() <= 1e-4 * theirs.grad.norm() + 1e-9


@pytest.mark.parametrize("name", [name for name in CASES if name not in GATED])
def test_what_is_clipped_is_counted_in_tokens(tmp_path: Path, name: str) -> None:
    objective, *_ = CASES[name]
    model = AutoModelForCausalLM.from_pretrained(tiny.write_model(tmp_path / "model", 0), dtype=torch.float32)
    batch, policy = objective.collate(answers()), Policy(model)
    _, metrics = objective.loss(policy, batch)
    ratio, each = (policy(batch).detach() - batch.old_log_probs).exp().tolist(), batch.advantages.tolist()
    if isinstance(objective.config, CISPO):
        wanted = sum(value > 1.2 for value in ratio)
    elif isinstance(objective.config, GMPO):
        wanted = sum(r < math.exp(-0.8) if a < 0 else r > math.exp(0.3) for r, a in zip(ratio, each, strict=True))
    else:
        (below, above), dual = objective.config.clip_range(), objective.config.delta or math.inf
        pairs = list(zip(ratio, each, strict=True))
        wanted = sum((a < 0 and not 1 - below <= r <= dual) or (r > 1 + above and a > 0) for r, a in pairs)
        assert (dual < math.inf) == any(a < 0 and r > dual for r, a in pairs)
        sides = [a < 0 and r < 1 - below for r, a in pairs], [a > 0 and r > 1 + above for r, a in pairs]
        for side, held in zip(("low", "high"), sides, strict=True):
            assert [float(each) for each in metrics[f"clip_ratio/{side}_mean"].numbers()] == [sum(held), len(ratio)]
    (name,) = metrics.keys() & {"clip_ratio/region_mean", "cispo_clip_ratio"}
    assert [float(each) for each in metrics[name].numbers()] == [wanted, len(ratio)]
    assert 0 < wanted < len(ratio)


def test_what_the_policy_left_behind_is_counted_in_tokens(tmp_path: Path) -> None:
    objective, *_ = CASES["grpo with an off-policy mask"]
    model = AutoModelForCausalLM.from_pretrained(tiny.write_model(tmp_path / "model", 0), dtype=torch.float32)
    _, metrics = objective.loss(Policy(model), objective.collate(answers()))
    assert [float(each) for each in metrics["off_policy_mask_ratio"].numbers()] == [4, 14]
    assert (
        "off_policy_mask_ratio"
        not in ClippedTokens(GRPO(rewards=REWARDS)).loss(Policy(model), objective.collate(answers()))[1]
    )


def test_a_dual_clip_lies_beyond_the_clip() -> None:
    assert DAPO(rewards=REWARDS, delta=1.29).delta == 1.29
    with pytest.raises(ValueError, match="`delta` is a ratio"):
        DAPO(rewards=REWARDS, delta=1.28)


def test_naming_dapo_is_all_that_it_needs() -> None:
    named = load_recipe({"model": "tiny", "data": "none.jsonl", "algorithm": {"name": "dapo", "rewards": ["exact"]}})
    config = named.algorithm
    assert (config.epsilon, config.epsilon_high, config.max_resample, config.mask_truncated_completions) == (
        0.2,
        0.28,
        3,
        True,
    )
    assert config.judges()[1:] == [Overlong(maximum=256, buffer=51)]  # a fifth, as 4,096 of 20,480 are
    own = Overlong(maximum=100, buffer=10)
    assert DAPO(rewards=[*REWARDS, own]).judges() == [*REWARDS, own]
    assert DAPO(rewards=REWARDS, overlong_buffer=0).judges() == REWARDS


def test_wrong_answers_of_which_some_are_too_long_teach_dapo_nothing(tmp_path: Path) -> None:
    """Their rewards differ by the punishment of length; as answers they are all as wrong."""
    bench, never = Bench(tmp_path), [{"name": "regex", "pattern": "this is never said"}]
    algorithm = {
        "name": "dapo",
        "rewards": never,
        "max_new_tokens": 24,
        "overlong_buffer": 0.9,
        "mask_truncated_completions": False,
    }
    run = bench.run(bench.recipe(algorithm, "prompt", batch_size=16), max_steps=2, save_every=1)
    for line in run.metrics:
        assert line["rewards/overlong/mean"] < 0 and line["frac_reward_zero_std"] < 1
        assert (
            line["dynamic_sampling/frac_dropped"]
            == line["dynamic_sampling/frac_filled"]
            == line["steps_without_update"]
            == 1
        )
    weights = [fingerprint(path, "model.safetensors") for path in (run.outcome.output / "checkpoints").iterdir()]
    assert len(weights) == 2 and weights[0] == weights[1]


def judged(*rewards: float) -> Experience:
    count = torch.ones(len(rewards), dtype=torch.int64)
    numbers = {"groups": torch.arange(len(rewards)) // 4, "prompts": count, "lengths": count, "tokens": count.int()}
    return Experience(
        number=torch.tensor(0), finished=count > 0, rewards=torch.tensor(rewards, dtype=torch.float64), **numbers
    )


def test_bnpo_asks_for_rewards_within_bounds() -> None:
    credit = load_object(BNPO.credit)
    found = credit(judged(1, 0, 0, 0, 1, 1, 0, math.nan), BNPO(rewards=REWARDS))["advantages"]
    assert found[0] > 0 > found[1] and found[7] == 0 and found[4] == found[5] > 0
    wide = credit(judged(4, -2, -2, -2, 4, 4, -2, math.nan), BNPO(rewards=REWARDS, min_reward=-2, max_reward=4))[
        "advantages"
    ]
    torch.testing.assert_close(wide, found)
    for reward, key in ((1.5, "algorithm.max_reward"), (-1.0, "algorithm.min_reward")):
        with pytest.raises(GymError, match="is not between 0 and 1") as caught:
            credit(judged(1, 0, 0, reward), BNPO(rewards=REWARDS))
        assert caught.value.problems[0].key == key
    with pytest.raises(ValueError, match="not below"):
        BNPO(rewards=REWARDS, min_reward=1.0)


def test_gdpo_normalizes_each_reward_by_itself() -> None:
    """In float64, answer by answer; the last reward says nothing of some answers, and one answer is not scored."""
    config = GDPO(rewards=[Length(weight=2.0), Length(), Length(weight=0.5)])
    scores = {
        "length": [0.0, 100.0, 50.0, 70.0, 10.0, 10.0, 90.0, 1.0],
        "length-2": [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0],
        "length-3": [math.nan, 3.0, 1.0, math.nan, 2.0, 5.0, 4.0, math.nan],
    }
    experience = judged(1, 2, 3, 4, 5, 6, 7, math.nan)
    tables = {name: torch.tensor(said, dtype=torch.float64) for name, said in scores.items()}
    found = load_object(GDPO.credit)(replace(experience, scores=tables), config)["advantages"]
    totals = [0.0] * 7
    for weight, said in zip((2.0, 1.0, 0.5), scores.values(), strict=True):
        for group in (range(4), range(4, 7)):
            known = [said[n] for n in group if not math.isnan(said[n])]
            for n in group:
                if not math.isnan(said[n]):
                    totals[n] += weight * (said[n] - fmean(known)) / (stdev(known) + 1e-4)
    wanted = [(total - fmean(totals)) / (stdev(totals) + 1e-4) for total in totals]
    assert found.tolist() == pytest.approx([*wanted, 0.0], abs=1e-6)


def test_rewards_scaled_by_the_round_are_those_of_all_processes(tmp_path: Path) -> None:
    """Each process samples a share of the completions; the deviation over the round is of all, as gradients show."""
    bench = Bench(tmp_path)
    judge = bench.path("judge.py")
    judge.write_text("def judge(texts):\n    return [float(sum(map(ord, text)) % 11) ** 2 for text in texts]\n")
    options = {"rewards": [{"name": "python", "function": f"{judge}:judge"}], "max_new_tokens": 6, "group_size": 4}
    algorithm = {"name": "grpo", "scale_rewards": "batch", "num_mini_batches": 2, **options}
    file = bench.path("recipe.yaml")
    file.write_text(json.dumps(bench.recipe(algorithm, "prompt", batch_size=4, accumulate=2, max_steps=4)))
    lines = []
    for world in (1, 2):
        team = start(world, str(file), f"output={tmp_path / str(world)}")
        assert team.codes() == [0] * world, team.errors()
        text = (tmp_path / str(world) / "metrics.jsonl").read_text()
        lines.append([json.loads(line) for line in text.splitlines()])
    for alone, shared in zip(*lines, strict=True):
        assert shared["reward_std"] == alone["reward_std"] > 1
        for name in ("loss", "grad_norm"):
            assert shared[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-5)

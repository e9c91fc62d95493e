"""A small language model learns to say one token over and over, with every algorithm: sampled, judged and updated for real."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from gym_core import Train
from gym_core.component import load_object
from gym_core.loading import load_component
from gym_data.tokenizer import Tokenizer
from gym_rewards import Length, RewardInput
from gym_rewards.reward_manager import RewardResult
from gym_rl import LocalEngineConfig, PolicyGradient
from gym_rl.local_engine import LocalEngine
from gym_rl.objective import PolicyObjective
from gym_rl.rollouts.generate_and_score import RolloutGenerator
from gym_rl.rollouts.rollout_loop import Rollouts
from gym_testkit import tiny
from gym_torch.model.adapted import Full
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED
from gym_torch.policy import Policy

torch.set_num_threads(1)
VOCABULARY, LENGTH, WANTED = 10, 6, "\x03"  #: the first ten bytes are tokens, and none of them ends an answer
STEPS = 200
#: options of each algorithm; no token ends an answer here, so all of them are cut off
ALGORITHMS: dict[str, dict[str, Any]] = {
    "bnpo": {},
    "cispo": {},
    "dapo": {"mask_truncated_completions": False},
    "dr_grpo": {},
    "gdpo": {},
    "gmpo": {},
    "grpo": {},
    "gspo": {},
    "gspo_token": {},
    "luspo": {},
    "opo": {},
    "reinforce_pp": {},
    "reinforce_pp_baseline": {},
    "remax": {"group_size": 8},
    "rloo": {},
    "sapo": {},
    "vespo": {},
}


@dataclass(frozen=True)
class Prompt:
    id: str
    tokens: np.ndarray
    trained: np.ndarray
    messages: Sequence[Any] = ()
    row: dict[str, Any] = field(default_factory=dict)


class Prompts(list[Prompt]):
    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(prompt.tokens) for prompt in self])


def judge(answers: Sequence[RewardInput]) -> RewardResult:
    scores: list[float | None] = [answer.text.count(WANTED) / LENGTH for answer in answers]
    return RewardResult({"length": scores}, scores, {})  # by the name of the reward that stands in the options


def setting(config: PolicyGradient, path: Path) -> tuple[Policy, PolicyObjective, Rollouts]:
    """Return a model of two layers and width 64, its objective, and its rollouts over eight prompts."""
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    assert layout_for(model) is PACKED
    random = np.random.default_rng(0)
    prompts = Prompts(
        Prompt(str(n), random.integers(0, VOCABULARY, 4).astype(np.int32), np.zeros(4, dtype=bool)) for n in range(8)
    )
    tokenizer = Tokenizer(tiny.write_model(path / "words"))
    engine = LocalEngine(LocalEngineConfig(), adapted=Full(None, model), tokenizer=tokenizer, precision="fp32")
    train = Train(max_steps=STEPS, batch_size=32, accumulate=1)
    objective: PolicyObjective = load_object(config.objective)(config, PACKED)
    return (
        Policy(model),
        objective,
        Rollouts(RolloutGenerator(config, prompts, engine, tokenizer, judge), train, PACKED),
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_learns_to_say_one_token(tmp_path: Path, name: str) -> None:
    _, cls = load_component("algorithms", name)
    config = cls(rewards=[Length()], max_new_tokens=LENGTH, **ALGORITHMS[name])
    policy, objective, rollouts = setting(config, tmp_path)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    rewards: list[float] = []
    for step in rollouts.steps(0):
        rewards.append(step.metrics["reward"])
        if fmean(rewards[-4:]) >= 0.9:
            break
        batches = [objective.collate(answers) for answers in step.batches]
        weight = sum(objective.weight(batch) for batch in batches)
        for batch in batches:
            (objective.loss(policy, batch)[0] / weight).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert rewards[0] < 0.2
    assert fmean(rewards[-4:]) >= 0.9, rewards[:: STEPS // 10]

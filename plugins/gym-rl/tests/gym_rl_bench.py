"""What tests of rollouts share: prompts in memory, a judge that knows nothing, and rounds over the tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from gym_core import Train
from gym_data.tokenizer import Tokenizer
from gym_rewards import Length, RewardInput
from gym_rewards.reward_manager import RewardResult
from gym_rl import RLOO, PolicyGradient
from gym_rl.config.local_engine import LocalEngineConfig
from gym_rl.local_engine import LocalEngine
from gym_rl.rollouts.generate_and_score import RolloutGenerator
from gym_rl.rollouts.rollout_loop import Rollouts
from gym_torch.model.adapted import Full
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED
from gym_torch.source import Step

Judging = Callable[[Sequence[RewardInput]], Sequence[float | None]]


@dataclass(frozen=True)
class Prompt:
    id: str
    tokens: np.ndarray
    trained: np.ndarray
    messages: Sequence[Mapping[str, Any]] = ()
    row: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()
    values: Mapping[str, Any] = field(default_factory=dict)


class Prompts(list[Prompt]):
    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(prompt.tokens) for prompt in self])


def prompts(number: int) -> Prompts:
    """Draw prompts of 3 to 8 tokens, named `row 0`, `row 1`, ..."""
    random = np.random.default_rng(0)
    made = Prompts()
    for index in range(number):
        tokens = random.integers(5, 60, int(random.integers(3, 9))).astype(np.int32)
        made.append(Prompt(f"row {index}", tokens, np.zeros(len(tokens), dtype=bool)))
    return made


def arbitrary(answers: Sequence[RewardInput]) -> list[float]:
    """Judge by the text, and by nothing that matters."""
    return [float(sum(map(ord, answer.text)) % 7) for answer in answers]


def algorithm(kind: type[PolicyGradient] = RLOO, **options: Any) -> PolicyGradient:
    return kind(rewards=[Length()], **{"group_size": 4, "max_new_tokens": 6, **options})


def rounds(path: Path, judging: Judging = arbitrary, count: int = 6, **options: Any) -> Rollouts:
    """Return rollouts of the model under `path` over `count` prompts; `train` among the options are those of training."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), Tokenizer(path)
    assert layout_for(model) is PACKED
    train = Train(**{"batch_size": 4, "accumulate": 2, **options.pop("train", {})})

    def judge(answers: Sequence[RewardInput]) -> RewardResult:
        scores = list(judging(answers))
        return RewardResult({"judging": scores}, scores, {})

    engine = LocalEngine(LocalEngineConfig(), adapted=Full(None, model), tokenizer=tokenizer, precision="fp32")
    generator = RolloutGenerator(algorithm(**options), prompts(count), engine, tokenizer, judge, train.seed)
    return Rollouts(generator, train, PACKED, "a")


def interrupted(make: Callable[[], Rollouts], done: int) -> tuple[Iterator[Step], Iterator[Step]]:
    """Return the steps of a source after the first `done`, and those of another one that took over its state there."""
    source, again = make(), make()
    steps = source.steps(0)
    for _ in range(done):
        next(steps)
    again.load_state_dict(source.state_dict(), {name: tensor.clone() for name, tensor in source.tensors().items()})
    return steps, again.steps(done)

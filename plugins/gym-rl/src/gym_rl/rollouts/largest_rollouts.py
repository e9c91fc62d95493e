"""Steps as large as those of a run may be, for a plan: the longest prompts there are, with completions as long as they may be.

They go through the stages of a real round, so that nothing is said twice about how a round becomes batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gym_core import Train
from gym_data.tokenizer import Tokenizer
from gym_rewards.reward import RewardInput
from gym_rewards.reward_manager import RewardResult
from gym_rl.config.base import PolicyGradient
from gym_rl.rollout_engine import RolloutRequest
from gym_rl.rollouts.experience import Experience
from gym_rl.rollouts.generate_and_score import RolloutGenerator
from gym_rl.rollouts.mini_batches import prompts_in
from gym_rl.rollouts.prompt import Prompt
from gym_rl.rollouts.rollout_loop import Rollouts
from gym_torch.generation.row import Completion
from gym_torch.packing import Layout
from gym_torch.source import Examples, Source, Step


class LargestRollouts(Source):
    """The largest step, again and again."""

    def __init__(self, config: PolicyGradient, prompts: Examples[Prompt], train: Train, layout: Layout) -> None:
        """Lay out a run over these prompts. Raises RecipeError where a step cannot be cut into groups."""
        # Nobody ends, and all earn the same.
        everyone = config.model_copy(update={"max_resample": 0, "mask_truncated_completions": False})
        self.total = _rollouts(everyone, prompts, train, layout).total
        longest = _Longest(prompts, prompts_in(train, config))
        self.first = _rollouts(everyone, longest, train.model_copy(update={"max_steps": 1}), layout)

    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step]:
        """Yield the steps from number `start` on."""
        for _ in range(start, self.total):
            yield from self.first.steps(0, rank, world)


def _rollouts(config: PolicyGradient, prompts: Examples[Prompt], train: Train, layout: Layout) -> Rollouts:
    free = config.model_copy(update={"routing_replay": False, "stop": []})  # nothing is routed or said here
    if config.entropy_target is not None:  # sooner or later the bonus counts
        free = free.model_copy(update={"entropy_target": None, "entropy_coef": 1.0})
    tokenizer = cast(Tokenizer, _Mute())
    return Rollouts(RolloutGenerator(free, prompts, _Endless(), tokenizer, _judged), train, layout, scoring=_scored)


class _Endless:
    """Generates completions as long as they may be."""

    exact = True

    def refresh(self) -> None:
        """Do nothing: there are no weights."""

    def close(self) -> None:
        """Do nothing."""

    def generate(self, request: RolloutRequest) -> list[Completion]:
        """Return a completion for each prompt."""
        length = request.max_new_tokens
        return [Completion([0] * length, [0.0] * length) for _ in request.prompts]


class _Mute:
    """Has no words for tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return no text."""
        return ""


def _judged(answers: Sequence[RewardInput]) -> RewardResult:
    nothing: list[float | None] = [None] * len(answers)
    return RewardResult({}, nothing, {})


def _scored(experience: Experience, batches: object) -> Mapping[str, Tensor]:
    """Return every column that a model may add."""
    return {name: torch.zeros(len(experience.tokens)) for name in ("ref_log_probs", "values")}


class _Bare(NamedTuple):
    """A prompt of which nothing is known but its tokens."""

    id: str
    tokens: npt.NDArray[np.int32]
    trained: npt.NDArray[np.bool_]
    messages: Sequence[Mapping[str, Any]] = ()
    row: Mapping[str, Any] = {}
    tools: Sequence[Mapping[str, Any]] = ()
    input_tokens: Collection[int] = ()
    values: Mapping[str, Any] = {}


class _Longest:
    """The longest of some prompts."""

    def __init__(self, prompts: Examples, count: int) -> None:
        self.prompts = prompts
        self.places = np.argsort(-np.asarray(prompts.lengths), kind="stable")[:count]

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """Tokens of each."""
        return np.asarray(self.prompts.lengths)[self.places]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.places)

    def __getitem__(self, index: int, /) -> Prompt:
        """Return one."""
        found = self.prompts[int(self.places[index])]
        # Others of a step may begin unlike, and what several begin with alike would be counted once.
        return _Bare(found.id, np.arange(index, index + len(found.tokens), dtype=np.int32), found.trained)

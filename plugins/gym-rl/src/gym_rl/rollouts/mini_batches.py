"""The mini-batches of a round: how its completions become optimizer steps, and the batches of each process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from gym_core import RecipeError, Train
from gym_rl.config.base import PolicyGradient
from gym_rl.rollouts.dynamic_sampling import in_loss
from gym_rl.rollouts.experience import Experience, Rollout
from gym_torch.metrics import UNLEARNT
from gym_torch.packing import Layout
from gym_torch.source import Examples, Step, dealt


@dataclass(frozen=True)
class MiniBatches:
    """Cuts the rounds of a run."""

    config: PolicyGradient
    prompts: Examples
    train: Train
    layout: Layout

    @property
    def size(self) -> int:
        """Completions of an optimizer step."""
        return self.train.batch_size * self.train.accumulate

    def own_share(self, experience: Experience, rank: int, world: int) -> Iterator[Sequence[Rollout]]:
        """Yield this process's batches of a whole round, as its steps will have them, each completion once."""
        for part in range(self._parts(experience)):
            batches, spare = self._batches(self._part(experience, part), rank, world)
            yield from batches[: len(batches) - spare]

    def step(self, experience: Experience, part: int, asked: tuple[int, int], rank: int, world: int) -> Step:
        """Return step `part` of a round, a mini-batch; `asked` are the prompts of the run before the round, and up to its end."""
        gone, place = divmod(part, self._parts(experience))
        answers, counted = self._part(experience, place, fresh=part == 0), in_loss(experience, self.config)
        some = [answer for answer in answers if counted[answer.number]]
        shared = [replace(answer, share=len(answers) / len(some)) for answer in some]
        batches, spare = self._batches(shared or answers, rank, world)
        passes = self.config.num_iterations
        share = (gone + min((place + 1) * self.size, len(experience.prompts)) / len(experience.prompts)) / passes
        epoch = round((asked[0] + (asked[1] - asked[0]) * share) / len(self.prompts), 6)
        return Step(batches, epoch, spare, {UNLEARNT: float(not some)}, idle=not some)

    def _parts(self, experience: Experience) -> int:
        """Return the number of mini-batches of a round."""
        return math.ceil(len(experience.prompts) / self.size)

    def _part(self, experience: Experience, part: int, fresh: bool = True) -> list[Rollout]:
        """Return the completions of mini-batch `part` of a round."""
        chosen = slice(part * self.size, (part + 1) * self.size)
        return experience.rollouts(self.prompts, fresh)[chosen]

    def _batches(self, rollouts: Sequence[Rollout], rank: int, world: int) -> tuple[list[list[Rollout]], int]:
        """Cut completions into batches; those to one prompt stay together as far as they fit.

        Returns those of this process, and how many of them at the end count for nothing.
        """
        size = min(self.config.group_size, self.train.batch_size)
        units: list[Sequence[Rollout]] = []
        for _, group in groupby(rollouts, key=lambda answer: answer.group):
            members = list(group)
            units += [members[start : start + size] for start in range(0, len(members), size)]
        lengths = np.array([len(unit[0].prompt.tokens) + sum(len(each.tokens) for each in unit) for unit in units])
        fitting = self.train.model_copy(update={"batch_size": max(1, self.train.batch_size // size)})
        mine, spare = dealt(self.layout.cut(lengths, fitting), rank, world)
        return [[answer for unit in batch for answer in units[int(unit)]] for batch in mine], spare


def prompts_in(train: Train, config: PolicyGradient) -> int:
    """Return the number of prompts in a round. Raises RecipeError where its completions do not make groups."""
    if train.batch_tokens is not None:
        raise RecipeError(
            "a step is counted in completions here, whose tokens nobody knows before",
            key="train.batch_tokens",
            fix="set `train: {batch_size: 16, accumulate: 4}`: completions in a pass, and passes in a step",
        )
    answers = train.batch_size * train.accumulate * config.num_mini_batches
    if answers % config.group_size:
        raise RecipeError(
            f"{answers} completions in a round do not make groups of {config.group_size}",
            key="train.batch_size",
            fix="batch_size x accumulate x num_mini_batches must be a multiple of group_size",
        )
    return answers // config.group_size

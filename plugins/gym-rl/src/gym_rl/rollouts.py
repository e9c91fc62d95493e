"""Steps over answers that the policy gives itself: prompts to groups of answers, to rewards, to advantages, to batches.

Round `k` is a function of the recipe and of the weights when it begins: which prompts it asks, and the random numbers of every
answer. A checkpoint in the middle of a round holds its answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from torch import Tensor

from gym_core import RecipeError, Train
from gym_core.component import load_object
from gym_rl.answers import Rollout, Round
from gym_rl.asking import Asking
from gym_rl.config import PolicyGradient
from gym_rl.credit import Credit
from gym_rl.health import health
from gym_rl.scoring import Scoring
from gym_torch.layout import Layout
from gym_torch.source import Dataset, Source, Step, dealt


class Rollouts(Source):
    """A run's worth of optimizer steps over answers."""

    def __init__(
        self,
        asking: Asking,
        train: Train,
        layout: Layout,
        fingerprint: str = "",
        scoring: Scoring = lambda round_, batches: {},
        keep: Callable[[Round], None] = lambda round_: None,
    ) -> None:
        """Plan the whole run.

        `fingerprint` names the prompts, `scoring` adds columns to the answers of a round, `keep` is told of each finished round
        before it is learnt from.
        """
        config = asking.config
        self.asking, self.config, self.prompts = asking, config, asking.prompts
        self.train, self.layout, self.scoring, self.keep = train, layout, scoring, keep
        self.step_size = train.batch_size * train.accumulate
        self.round_size = self.step_size * config.mini_batches
        rounds = math.ceil(train.max_steps / config.mini_batches) if train.max_steps else None
        schedule = {"batch_size": prompts_in(train, config), "accumulate": 1, "max_steps": rounds}
        self.order = Dataset(self.prompts, train.model_copy(update=schedule), fingerprint, layout)
        last = int(self.order.bounds[-1] - self.order.bounds[-2]) * config.group_size  # fewer where the data end
        whole = (self.order.total - 1) * config.mini_batches
        self.total = train.max_steps or whole + math.ceil(last / self.step_size)
        self.credit: Credit = load_object(type(config).credit)
        self.round: Round | None = None
        self.health: dict[str, float] = {}  #: of the round, logged with each of its steps

    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step]:
        """Yield the steps from number `start` on; where a round begins, its prompts are answered first."""
        for step in range(start, self.total):
            number, part = divmod(step, self.config.mini_batches)
            if self.round is None or int(self.round.number) != number:
                self.round = self._round(number, rank, world)
                self.health = health(self.round)
                self.keep(self.round)
            yield self._step(self.round, part, rank, world)

    def state_dict(self) -> dict[str, Any]:
        """Return what names the prompts and their order, and how the round under way went."""
        return {**self.order.state_dict(), "health": self.health}

    def tensors(self) -> dict[str, Tensor]:
        """Return the round that is under way."""
        return self.round.tensors() if self.round else {}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take the round up again. Raises DataError when the prompts are others."""
        self.order.load_state_dict(state, {})
        self.round = Round.of(tensors) if tensors else None
        self.health = dict(state["health"])

    def _round(self, number: int, rank: int, world: int) -> Round:
        """Return a round, stage after stage; each gets what the one before made, and adds to it."""
        judged = self._asked(number, rank, world)
        # Here is the place of a stage that drops groups by their rewards and asks again: nothing more was spent on them.
        scored = judged.having(self.scoring(judged, lambda: self._share(judged, rank, world)))
        return scored.having(self.credit(scored, self.config))

    def _asked(self, number: int, rank: int, world: int) -> Round:
        """Return the answers to the prompts whose turn it is, judged."""
        chosen = self.order.samples(int(self.order.bounds[number]), int(self.order.bounds[number + 1]))
        asked = np.repeat(chosen, self.config.group_size)
        first = number * self.round_size
        return self.asking(number, asked, range(first, first + len(asked)), rank, world)

    def _share(self, round_: Round, rank: int, world: int) -> Iterator[Sequence[Rollout]]:
        """Yield this process's batches of a whole round, as its steps will have them, each answer once."""
        for part in range(math.ceil(len(round_.prompts) / self.step_size)):
            batches, spare = self._batches(round_, part, rank, world)
            yield from batches[: len(batches) - spare]

    def _step(self, round_: Round, part: int, rank: int, world: int) -> Step:
        """Return mini-batch `part` of a round."""
        batches, spare = self._batches(round_, part, rank, world)
        done = min((part + 1) * self.step_size, len(round_.prompts)) / self.config.group_size
        epoch = round((int(self.order.bounds[int(round_.number)]) + done) / len(self.prompts), 6)
        return Step(batches, epoch, spare, self.health)

    def _batches(self, round_: Round, part: int, rank: int, world: int) -> tuple[list[list[Rollout]], int]:
        """Cut mini-batch `part` of a round into batches; answers to one prompt stay together as far as they fit.

        Returns those of this process, and how many of them at the end count for nothing.
        """
        config = self.config
        chosen = slice(part * self.step_size, (part + 1) * self.step_size)
        rollouts = round_.rollouts(self.prompts, fresh=part == 0)[chosen]
        size = min(config.group_size, self.train.batch_size)
        units: list[Sequence[Rollout]] = []
        for _, group in groupby(rollouts, key=lambda answer: answer.group):
            members = list(group)
            units += [members[start : start + size] for start in range(0, len(members), size)]
        lengths = np.array([len(unit[0].prompt.tokens) + sum(len(each.tokens) for each in unit) for unit in units])
        fitting = self.train.model_copy(update={"batch_size": max(1, self.train.batch_size // size)})
        mine, spare = dealt(self.layout.cut(lengths, fitting), rank, world)
        return [[answer for unit in batch for answer in units[int(unit)]] for batch in mine], spare


def prompts_in(train: Train, config: PolicyGradient) -> int:
    """Return the number of prompts in a round. Raises RecipeError where its answers do not make groups."""
    if train.batch_tokens is not None:
        raise RecipeError(
            "a step is counted in answers here, whose tokens nobody knows before",
            key="train.batch_tokens",
            fix="set `train: {batch_size: 16, accumulate: 4}`: answers in a pass, and passes in a step",
        )
    answers = train.batch_size * train.accumulate * config.mini_batches
    if answers % config.group_size:
        raise RecipeError(
            f"{answers} answers in a round do not make groups of {config.group_size}",
            key="train.batch_size",
            fix="batch_size x accumulate x mini_batches must be a multiple of group_size",
        )
    return answers // config.group_size

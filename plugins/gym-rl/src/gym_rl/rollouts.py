"""Steps over answers that the policy gives itself: prompts to groups of answers, to rewards, to advantages, to batches.

Round `k` is a function of the recipe and of the weights when it begins: which prompts it asks, and the random numbers of every
answer. A checkpoint in the middle of a round holds its answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any, Protocol, cast

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from gym_core import Train
from gym_core.component import load_object
from gym_data.tokenizer import Tokenizer
from gym_rl.answers import Rollout, Round
from gym_rl.config import PolicyGradient
from gym_rl.engine import Sampler
from gym_rl.judge import Judgement
from gym_rl.reward import Answer
from gym_rl.sampled import check
from gym_torch.batch import Example
from gym_torch.generation.generator import Completion
from gym_torch.layout import Layout
from gym_torch.source import Dataset, Examples, Source, Step, dealt


class Prompt(Example, Protocol):
    """A prompt as gym-data prepares it."""

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """Roles and contents."""
        ...

    @property
    def row(self) -> Mapping[str, Any]:
        """All columns."""
        ...


class Rollouts(Source):
    """A run's worth of optimizer steps over answers."""

    def __init__(
        self,
        config: PolicyGradient,
        prompts: Examples,
        train: Train,
        layout: Layout,
        sampler: Sampler,
        words: Tokenizer,
        judge: Callable[[Sequence[Answer]], Judgement],
        fingerprint: str = "",
    ) -> None:
        """Plan the whole run; `sampler` answers with the weights as they are when it is told that they have changed."""
        self.config, self.prompts, self.train, self.layout = config, prompts, train, layout
        self.sampler, self.words, self.judge = sampler, words, judge
        self.step_size = train.batch_size * train.accumulate
        asked = self.step_size * config.mini_batches // config.group_size
        rounds = math.ceil(train.max_steps / config.mini_batches) if train.max_steps else None
        schedule = {"batch_size": asked, "accumulate": 1, "max_steps": rounds}
        self.order = Dataset(prompts, train.model_copy(update=schedule), fingerprint, layout)
        last = int(self.order.bounds[-1] - self.order.bounds[-2]) * config.group_size  # fewer where the data end
        whole = (self.order.total - 1) * config.mini_batches
        self.total = train.max_steps or whole + math.ceil(last / self.step_size)
        self.advantage = load_object(type(config).advantage)
        self.round: Round | None = None
        self.health: dict[str, float] = {}  #: of the round, logged with each of its steps

    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step]:
        """Yield the steps from number `start` on; where a round begins, its prompts are answered first."""
        for step in range(start, self.total):
            number, part = divmod(step, self.config.mini_batches)
            if self.round is None or int(self.round.number) != number:
                self.round, self.health = self._answer(number, rank, world)
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
        self.round = Round(**tensors) if tensors else None
        self.health = dict(state["health"])

    def _answer(self, number: int, rank: int, world: int) -> tuple[Round, dict[str, float]]:
        """Answer the prompts of a round, each process its share, and judge the answers."""
        config = self.config
        chosen = self.order.samples(int(self.order.bounds[number]), int(self.order.bounds[number + 1]))
        asked = np.repeat(chosen, config.group_size)
        mine = [place for place in range(len(asked)) if place // config.group_size % world == rank]
        prompts = [cast(Prompt, self.prompts[int(asked[place])]) for place in mine]
        self.sampler.refresh()
        made = self.sampler.generate(
            [prompt.tokens.tolist() for prompt in prompts],
            config.max_new_tokens,
            config.temperature,
            config.top_p,
            seed=self.train.seed,
            streams=[number * self.step_size * config.mini_batches + place for place in mine],
        )
        check(made, [prompt.id for prompt in prompts], config.max_new_tokens)
        judged = self.judge([self._read(*pair) for pair in zip(prompts, made, strict=True)])
        rows = [dict(zip(judged.scores, row, strict=True)) for row in zip(*judged.scores.values(), strict=True)]
        found = list(zip(mine, made, judged.totals, rows, strict=True))
        if world > 1:
            found = sorted(gather_object(found), key=lambda answer: answer[0])
        _, every, totals, scores = zip(*found, strict=True)
        rewards = torch.tensor([math.nan if total is None else total for total in totals], dtype=torch.float64)
        group = torch.arange(len(asked)) // config.group_size
        round_ = Round(
            number=torch.tensor(number),
            groups=group,
            prompts=torch.from_numpy(asked.astype(np.int64)),
            lengths=torch.tensor([len(answer.tokens) for answer in every]),
            tokens=torch.tensor([token for answer in every for token in answer.tokens], dtype=torch.int32),
            log_probs=torch.tensor([value for answer in every for value in answer.log_probs], dtype=torch.float32),
            finished=torch.tensor([answer.finished for answer in every]),
            rewards=rewards,
            advantages=self.advantage(rewards, group),
        )
        return round_, health(round_, scores)

    def _read(self, prompt: Prompt, made: Completion) -> Answer:
        text = self.words.decode(made.tokens[:-1] if made.finished else made.tokens)
        return Answer(text, prompt.row, prompt.messages, prompt.id, len(made.tokens), made.finished)

    def _step(self, round_: Round, part: int, rank: int, world: int) -> Step:
        """Cut mini-batch `part` of a round into batches; answers to one prompt stay together as far as they fit."""
        config = self.config
        rollouts = round_.rollouts(self.prompts)[part * self.step_size : (part + 1) * self.step_size]
        size = min(config.group_size, self.train.batch_size)
        units: list[Sequence[Rollout]] = []
        for _, group in groupby(rollouts, key=lambda answer: answer.group):
            members = list(group)
            units += [members[start : start + size] for start in range(0, len(members), size)]
        lengths = np.array([len(unit[0].prompt.tokens) + sum(len(each.tokens) for each in unit) for unit in units])
        fitting = self.train.model_copy(update={"batch_size": max(1, self.train.batch_size // size)})
        mine, spare = dealt(self.layout.cut(lengths, fitting), rank, world)
        batches = [[answer for unit in batch for answer in units[int(unit)]] for batch in mine]
        done = min((part + 1) * self.step_size, len(round_.prompts)) / config.group_size
        epoch = round((int(self.order.bounds[int(round_.number)]) + done) / len(self.prompts), 6)
        return Step(batches, epoch, spare, self.health)


def health(round_: Round, scores: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Return what is logged of a round: rewards, groups that teach nothing, and lengths."""
    rewards = round_.rewards
    judged = rewards[~rewards.isnan()]
    spread = [float(part.max() - part.min()) for part in rewards.view(-1, int((round_.groups == 0).sum()))]
    each = {
        f"reward/{name}": fmean(values)
        for name in scores[0]
        if (values := [score for row in scores if (score := row[name]) is not None])
    }
    return {
        "reward": float(judged.mean()) if len(judged) else 0.0,
        "reward_std": float(judged.std()) if len(judged) > 1 else 0.0,
        **each,
        "groups_without_spread": fmean(not apart > 0 for apart in spread),
        "answer_tokens": float(round_.lengths.double().mean()),
        "answers_cut_off": 1 - float(round_.finished.double().mean()),
    }

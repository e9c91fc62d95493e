"""The first stage of a round: prompts are answered, each process its share, and the answers judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from accelerate.utils import gather_object

from gym_data.tokenizer import Tokenizer
from gym_rl.config import PolicyGradient
from gym_rl.engine import Sampler
from gym_rl.reward import Answer
from gym_rl.rewards.judge import Judgement
from gym_rl.rounds.answers import Round
from gym_rl.rounds.routed import kept
from gym_rl.rounds.sampled import check
from gym_torch.batch import Example
from gym_torch.generation.generator import Completion
from gym_torch.layout import Ints
from gym_torch.source import Examples


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


@dataclass(frozen=True)
class Asking:
    """What answers prompts and judges the answers."""

    config: PolicyGradient
    prompts: Examples
    sampler: Sampler  #: answers with the weights that it was told of last
    words: Tokenizer
    judge: Callable[[Sequence[Answer]], Judgement]
    seed: int = 0

    def __call__(self, number: int, asked: Ints, streams: Sequence[int], rank: int = 0, world: int = 1) -> Round:
        """Return the answers of round `number`, judged, the same in every process; each process gives its share.

        Args:
            number: of the round, from 0.
            asked: indices of the prompts, `[answers]`; `group_size` equal ones in a row are a group.
            streams: of the random numbers of each answer, `[answers]`.
            rank: of this process.
            world: how many there are.

        """
        size = self.config.group_size
        mine = [place for place in range(len(asked)) if place // size % world == rank]
        prompts = [cast(Prompt, self.prompts[int(asked[place])]) for place in mine]
        made = self._answers(prompts, [streams[place] for place in mine])
        judged = self.judge([self._read(*pair) for pair in zip(prompts, made, strict=True)])
        rows = [dict(zip(judged.scores, row, strict=True)) for row in zip(*judged.scores.values(), strict=True)]
        found = list(zip(mine, made, judged.totals, rows, strict=True))
        if world > 1:
            found = sorted(gather_object(found), key=lambda answer: answer[0])
        _, every, totals, scores = zip(*found, strict=True)
        experts, prompt_experts = kept(every, size) if self.config.routing_replay else (None, None)
        sampled = torch.tensor([value for answer in every for value in answer.log_probs], dtype=torch.float32)
        return Round(
            number=torch.tensor(number),
            groups=torch.arange(len(asked)) // size,
            prompts=torch.from_numpy(asked.astype("int64")),
            lengths=torch.tensor([len(answer.tokens) for answer in every]),
            tokens=torch.tensor([token for answer in every for token in answer.tokens], dtype=torch.int32),
            finished=torch.tensor([answer.finished for answer in every]),
            rewards=_numbers(totals),
            scores={name: _numbers([row[name] for row in scores]) for name in scores[0]},
            columns={
                "sampled": sampled,
                **({"old": sampled.clone()} if self.sampler.exact else {}),
                **({"experts": experts} if experts is not None else {}),
            },
            prompt_experts=prompt_experts,
        )

    def _answers(self, prompts: Sequence[Prompt], streams: Sequence[int]) -> list[Completion]:
        config = self.config
        made = self.sampler.generate(
            [prompt.tokens.tolist() for prompt in prompts],
            config.max_new_tokens,
            config.temperature,
            config.top_p,
            seed=self.seed,
            streams=streams,
        )
        check(made, [prompt.id for prompt in prompts], config.max_new_tokens)
        return made

    def _read(self, prompt: Prompt, made: Completion) -> Answer:
        text = self.words.decode(made.tokens[:-1] if made.finished else made.tokens)
        return Answer(text, prompt.row, prompt.messages, prompt.id, len(made.tokens), made.finished)


def _numbers(values: Sequence[float | None]) -> torch.Tensor:
    """Return `[answers]` fp64, NaN for None."""
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)

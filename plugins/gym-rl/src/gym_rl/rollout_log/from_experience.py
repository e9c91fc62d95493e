"""From a round to what is kept of it for people to read."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gym_data.tokenizer import Tokenizer
from gym_rl.formulas.segment_sums import means
from gym_rl.rollout_log.files import Sample
from gym_rl.rollouts.experience import Experience
from gym_torch.source import Examples


def samples(
    experience: Experience, prompts: Examples, tokenizer: Tokenizer, steps: tuple[int, int]
) -> Iterator[Sample]:
    """Yield the completions of a round that these steps learn from; `prompts` are those of the whole data set."""
    rewards = [_known(value) for value in experience.rewards.tolist()]
    scores = {name: [_known(value) for value in said.tolist()] for name, said in experience.scores.items()}
    earned = experience.columns.get("advantages")
    advantages = None if earned is None else means(earned.double(), experience.owner, len(rewards)).tolist()
    finished = experience.finished.tolist()
    ended = (experience.finished if experience.stopped is None else experience.finished & ~experience.stopped).tolist()
    for number, made in enumerate(experience.rollouts(prompts)):
        yield Sample(
            steps,
            made.prompt.id,
            tokenizer.decode(made.prompt.tokens),
            tokenizer.decode(made.tokens[:-1] if ended[number] else made.tokens),
            int(made.trained.sum()),
            finished[number],
            rewards[number],
            {name: said[number] for name, said in scores.items()},
            None if advantages is None else advantages[number],
        )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value

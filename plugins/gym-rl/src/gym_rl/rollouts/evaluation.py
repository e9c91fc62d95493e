"""Evaluation by reward: completions of held-out prompts are sampled and scored as in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gym_rl.config.base import PolicyGradient
from gym_rl.rollouts.experience import Experience
from gym_rl.rollouts.generate_and_score import RolloutGenerator
from gym_rl.rollouts.metrics import rollout_metrics
from gym_torch.loop.job import Job

#: what is said of held-out completions, beside each reward: the rest of a round's metrics matters in training
LOGGED = ("reward", "completions/mean_length", "completions/clipped_ratio", "num_turns/mean")


def evaluation_options(config: PolicyGradient) -> PolicyGradient:
    """Return the options under which completions of held-out prompts are sampled."""
    options = {"group_size": config.eval_samples, "temperature": config.eval_temperature, "routing_replay": False}
    return config.model_copy(update=options)


class RewardEvaluation:
    """Asks every held-out prompt, with the same random numbers each time."""

    def __init__(self, generator: RolloutGenerator, keep: Callable[[Experience, int], None]) -> None:
        """Take what samples and scores; `keep` is told of the completions, and after which step they were given."""
        self.generator, self.keep = generator, keep

    def __call__(self, job: Job) -> Mapping[str, float] | None:
        """Return mean reward, that of each reward, lengths, and what an environment logs; None where nothing was scored."""
        job.ranks.at("")  # answering and judging take their time
        self.generator.engine.refresh()
        asked = np.repeat(np.arange(len(self.generator.prompts)), self.generator.config.group_size)
        found = self.generator(0, asked, range(len(asked)))
        self.keep(found, job.progress.step)
        if found.rewards.isnan().all():
            return None
        return {
            name: value
            for name, value in rollout_metrics(found).items()
            if name in LOGGED or name.startswith(("rewards/", "environment/", "tools/"))
        }

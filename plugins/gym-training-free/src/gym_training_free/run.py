"""Training-Free GRPO in a recipe: `gym train` runs it as it does any algorithm, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gym_core.artifact import Artifact
from gym_core.errors import GymError
from gym_core.run import Run
from gym_training_free import questions
from gym_training_free.answer_rewards import judge
from gym_training_free.config import GRPOConfig
from gym_training_free.endpoint.chat import ChatModel
from gym_training_free.endpoint.ledger import dollars
from gym_training_free.learning.learner import Round
from gym_training_free.session import Models, Setting, learn, save


class RecipeTrainer:
    """Learns from the questions of a recipe through the endpoint of its `model`."""

    def __init__(self, config: GRPOConfig, run: Run, model: ChatModel) -> None:
        """Take what the recipe names; nothing is asked yet."""
        self.config, self.run, self.model = config, run, model

    def train(self) -> Artifact:
        """Learn to the end, from where an earlier process stopped, and write the library to `experience`.

        Raises GymError where a cap was in the way: what was learned so far is written by then.
        """
        judging = judge(self.config.rewards, self.config.reward_timeout)
        try:
            train = self.run.recipe.train
            setting = Setting(
                self.config,
                models(self.config, self.model, self.run),
                read(self.config, self.run.recipe.data, train.seed),
                judging,
                train.seed,
                train.shuffle,
            )
            library = learn(setting, self.run.output, _say)
        finally:
            if judging is not None:
                judging.close()
        made = save(library, self.run.output / "experience")
        if stopped := library.evidence["stopped"]:
            why = f"stopped before the end: {stopped}"
            fix = f"raise it and run this again, which goes on; {len(library)} experiences are in {made.path}"
            key = "algorithm.max_cost" if self.config.max_cost is not None else "algorithm.max_total_tokens"
            raise GymError(why, where=str(self.run.output), key=key, fix=fix)
        return made


def _say(made: Round) -> None:
    """Print a line about a round."""
    reward = "unknown" if made.reward is None else f"{made.reward:.3f}"
    click.echo(
        f"round {made.step}, epoch {made.epoch + 1}: reward {reward}, {made.teaching} of {made.questions} groups differ, "
        f"{made.verdict}, {made.experiences} experiences, {dollars(made.cost, made.unpriced)}",
        err=True,
    )


def models(config: GRPOConfig, worker: ChatModel, run: Run | None) -> Models:
    """Return the models of a run: the critic is the one that answers, where nobody says otherwise."""
    critic = worker if config.critic is None else config.critic.build(run=run)
    embedding = None if config.embedding is None else config.embedding.build(run=run)
    return Models(worker, critic, embedding)


def read(config: GRPOConfig, data: Any, seed: int) -> questions.Questions:
    """Return the questions of a recipe: of its `data` section, or of the file that the algorithm names."""
    if data is None:
        rows = questions.asked(questions.read(Path(config.dataset or "")), config.prompt)
        return questions.questions(rows, (), config.held_out, seed)
    train, validation = data.prompts(seed)
    return questions.questions(
        [(one.messages, one.row) for one in train],
        [(one.messages, one.row) for one in validation],
        config.held_out,
        seed,
    )

"""Evaluates a library of experiences on the questions of a recipe, with and without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gym_core.recipe import Recipe
from gym_training_free.answer_rewards import judge
from gym_training_free.config import training_free
from gym_training_free.endpoint.ledger import CapReached, Charge
from gym_training_free.experience.library import ExperienceLibrary
from gym_training_free.learning.gate import Comparison, compare
from gym_training_free.questions import taught
from gym_training_free.run import models, read
from gym_training_free.session import Setting, asking


@dataclass(frozen=True)
class Measurement:
    """How answers do with a library, against none."""

    compared: Comparison | None  #: None where no answer has a reward
    spent: Charge
    unpriced: Sequence[str]  #: models that are not in these dollars: nobody knows their price
    taught: int  #: questions that an experience of the library comes from; what they show of it is no evidence


def measure(library: ExperienceLibrary, recipe: Recipe, samples: int) -> Measurement:
    """Return how answers to all questions of a recipe do with a library, against none, and what that cost.

    Raises RecipeError where the recipe is of another algorithm, GymError where a cap leaves no room for all answers, or
    the model is down.
    """
    config = training_free(recipe)
    assert recipe.model is not None  # the algorithm needs that section
    judging = judge(config.rewards, config.reward_timeout)
    try:
        worker = recipe.model.build(run=None)
        asked = read(config, recipe.data, recipe.train.seed)
        every = dict(enumerate((*asked.train, *asked.held_out)))
        setting = Setting(config, models(config, worker, None), asked, judging, recipe.train.seed)
        with asking(setting, None) as ask:
            sides = (("test:without", ExperienceLibrary()), ("test:with", library))
            try:
                found = []
                for role, one in sides:
                    found.append(ask.answers(every, one, samples, 0, 0, role, config.temperature_eval))
                    ask.caller.insist(ask.model)
            except CapReached as reached:
                raise ask.caller.ledger.error(reached) from None
            known = taught(library, every.values())
            return Measurement(compare(*found), ask.caller.ledger.spent, sorted(ask.caller.unpriced), known)
    finally:
        if judging is not None:
            judging.close()

"""LLaMA-Factory's functions, which `gym.hparams` and `gym.train` serve: `load_recipe` and `execute` in its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gym_core import Backend, Component, Outcome, Recipe, RecipeError, Train, execute, load_recipe

TrainArguments = tuple[Backend | None, Component | None, Train, Recipe, dict[str, Any]]


def get_train_args(args: Mapping[str, Any]) -> TrainArguments:
    """Validate recipe keys; return model, data, training, the whole recipe and no generation arguments."""
    recipe = load_recipe(args)
    return recipe.model, recipe.data, recipe.train, recipe, {}


def run_sft(
    model_args: Backend | None,
    data_args: Component | None,
    training_args: Train,
    finetuning_args: Recipe,
    generating_args: Mapping[str, Any] | None = None,
) -> Outcome:
    """Run what `get_train_args` returned, or replacements for its parts. Raises RecipeError unless it is `sft`."""
    method = next(item.name for item in finetuning_args.resolved if item.path == ("algorithm",)).rpartition("/")[2]
    if method != "sft":
        raise RecipeError(f"run_sft was given a recipe for `{method}`", key="algorithm", fix="run_exp runs any recipe")
    if generating_args:
        raise RecipeError("training takes no generation arguments", key=", ".join(generating_args), fix="remove them")
    return execute(replace(finetuning_args, model=model_args, data=data_args, train=training_args))


def run_exp(args: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Outcome:
    """Run a recipe from a file or a mapping, with `key=value` overrides, whatever its algorithm."""
    return execute(load_recipe(args, overrides))

"""The Python API that `gym` serves; everything in it is `load_recipe` and `execute` in other words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gym_core.errors import GymError, RecipeError
from gym_core.kinds import Backend, Data
from gym_core.recipe import Recipe, load_recipe
from gym_core.run import Outcome, execute, export
from gym_core.train import Train

TrainArguments = tuple[Backend | None, Data | None, Train, Recipe, dict[str, Any]]


class TrainingConfig(dict[str, Any]):
    """The keys of a recipe, in any dialect: `TrainingConfig(model="tiny", algorithm="sft")`."""


class Trainer:
    """Trains what a configuration says, and exports what came of it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Take a `TrainingConfig` or any mapping of recipe keys; it is validated by `train`."""
        self.config = dict(config)
        self.outcome: Outcome | None = None

    def train(self, dataset: str | Sequence[str] | None = None) -> Outcome:
        """Run the recipe, on `dataset` where given. A run that was interrupted continues. Raises GymError."""
        if dataset is not None:
            data = self.config.get("data")
            key = "data" if "model" in self.config else "dataset"
            self.config[key] = {**data, "sources": dataset} if isinstance(data, Mapping) else dataset
        self.outcome = execute(load_recipe(self.config))
        return self.outcome

    def export(self, path: str | Path, **options: Any) -> Path:
        """Write what was trained for another runtime; the suffix of `path` names the exporter (`safetensors`).

        `options` are those of the exporter. Raises GymError before `train`, PluginError for an unknown exporter.
        """
        if self.outcome is None:
            raise GymError("nothing has been trained yet", fix="call `train` first")
        name = Path(path).suffix.removeprefix(".") or "safetensors"
        return export(self.config, self.outcome.output, self.outcome.artifact, {"name": name, **options}, Path(path))


def get_train_args(args: Mapping[str, Any]) -> TrainArguments:
    """Validate recipe keys; return model, data, training, the whole recipe and no generation arguments."""
    recipe = load_recipe(args)
    return recipe.model, recipe.data, recipe.train, recipe, {}


def run_sft(
    model_args: Backend | None,
    data_args: Data | None,
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

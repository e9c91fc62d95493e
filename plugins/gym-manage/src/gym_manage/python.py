"""The Python API that `gym` serves; everything in it is `load_recipe` and `execute` in other words."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gym_core.artifact import Artifact
from gym_core.errors import GymError, RecipeError
from gym_core.execution import execute
from gym_core.loading import find, load
from gym_core.recipe import load_recipe
from gym_core.run import Outcome
from gym_manage.recorded import recorded
from gym_manage.reopened import reopened


class TrainingConfig(dict[str, Any]):
    """The keys of a recipe, in any dialect: `TrainingConfig(model="tiny", algorithm="sft")`."""


class Trainer:
    """Trains what a configuration says, and exports what came of it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Take a `TrainingConfig` or any mapping of recipe keys; `train` validates it. Raises RecipeError for anything else."""
        if not isinstance(config, Mapping):
            fix = "Trainer(TrainingConfig(model=..., algorithm=...)); a file: gym_core.execute(gym_core.load_recipe(path))"
            raise RecipeError(f"a Trainer takes the keys of a recipe, and no {type(config).__name__}", fix=fix)
        self.config = dict(config)
        self.outcome: Outcome | None = None
        self._merged: Artifact | None = None

    def train(self, dataset: str | Sequence[str] | None = None) -> Outcome:
        """Run the recipe, on `dataset` where given. A run that was interrupted continues. Raises GymError."""
        if dataset is not None:
            data = self.config.get("data")
            self.config["data"] = {**data, "sources": dataset} if isinstance(data, Mapping) else dataset
        self.outcome, self._merged = execute(load_recipe(self.config)), None
        return self.outcome

    def apply_deltasoup(
        self, config: Mapping[str, Any] | None = None, user_id: str = "", min_contributors: int = 1
    ) -> Artifact:
        """Contribute what was trained to a community in a folder of this machine, merge its round, and export what came of it.

        Args:
            config: options of `gym.quantization.DeltaSoupConfig`; by default the community lies in `$GYM_SOUP`, or in `soup`.
            user_id: who contributes; by default the name of the output directory.
            min_contributors: contributions, this one included, without which nothing is merged.

        Raises GymError before `train`, where the contribution is refused or too few have come, and PluginError without
        gym-deltasoup.

        """
        if self.outcome is None:
            raise GymError("nothing has been trained yet", fix="call `train` first")
        community = load(find("facade", "quantization.DeltaSoup"))
        soup = community({"folder": os.environ.get("GYM_SOUP") or "soup", **(config or {})})
        try:
            soup.contribute(user_id or soup.user_of(self.outcome.output), recorded(self.outcome.output).trained)
            merged: Artifact = soup.aggregate(min_contributors).artifact
        finally:
            soup.close()
        self._merged = merged
        return merged

    def export(self, path: str | Path, quantization: str | Mapping[str, Any] | None = None, **options: Any) -> Path:
        """Write what was trained for another runtime; the suffix of `path` names the exporter (`safetensors`).

        With a `quantization`, a quantizer that works after training, what it makes of the trained model is written.
        `options` are those of the exporter. Raises GymError before `train`, PluginError for an unknown exporter.
        """
        if self.outcome is None:
            raise GymError("nothing has been trained yet", fix="call `train` first")
        name = Path(path).suffix.removeprefix(".") or "safetensors"
        wanted = {**self.config, "export": [{"name": name, **options}]}
        artifact = self._merged or self.outcome.artifact
        if quantization is not None:
            wanted["quantization"] = quantization
        run, hook = reopened(wanted, self.outcome.output)
        if quantization is not None:
            label = quantization if isinstance(quantization, str) else str(quantization.get("name", "model"))
            into = self.outcome.output / f"quantized-{label.rpartition('/')[2]}"
            trained = self._merged or recorded(self.outcome.output).trained
            artifact = hook.quantize(run=run, artifact=trained, into=into)
        return Path(hook.export(run=run, artifact=artifact, exporter=run.recipe.export[0], into=Path(path)))

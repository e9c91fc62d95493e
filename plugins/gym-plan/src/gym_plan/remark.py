"""What `gym explain` says of an adapter: what it puts where, and how much of the model trains."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

from gym_core import GymError, Recipe
from gym_core.discovery import entries
from gym_data.location import locate
from gym_torch.config import Transformers


def adapter(recipe: Recipe) -> Sequence[str]:
    """Return a line about the adapter of a recipe, where it has one and the model is on this machine; no weights are read."""
    model = recipe.model
    if recipe.adapter is None or not isinstance(model, Transformers):
        return []
    families = {name for entry in entries("families") for name in (entry.name, entry.qualified)}
    if model.path not in families and not Path(model.path).expanduser().is_dir():
        return []
    import torch

    from gym_plan.skeleton import built_alone

    try:
        path = locate(model.path, model.revision, weights=False)
        built = built_alone(recipe, model, path, "fp32", torch.device("cpu"))
    except GymError as error:
        return [f"adapter  {error.problems[0].why}"]
    described = built.adapted.describe()
    what = f"{described}; " if described else ""
    trained = sum(prod(shape) for shape in built.trained)
    return [f"adapter  {what}{trained:,} of {built.parameters:,} parameters train ({trained / built.parameters:.2%})"]

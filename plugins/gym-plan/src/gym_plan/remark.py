"""What `gym explain` says of an adapter: what it puts where, and how much of the model trains."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gym_core import GymError, Recipe
from gym_core.discovery import entries
from gym_core.files import expanded
from gym_torch.kinds import TorchBackend, part


def adapter(recipe: Recipe) -> Sequence[str]:
    """Return a line about the adapter of a recipe, where it has one and the model is on this machine; no weights are read."""
    path = str(recipe.canonical(everything=True).get("model", {}).get("path", ""))
    backend = part(recipe, TorchBackend)
    if recipe.adapter is None or backend is None or not backend.empty:
        return []
    families = {name for entry in entries("families") for name in (entry.name, entry.qualified)}
    if path not in families and not expanded(path).is_dir():
        return []
    import torch

    from gym_plan.skeleton import built_alone

    try:
        built = built_alone(recipe, backend, "fp32", torch.device("cpu"))
    except GymError as error:
        return [f"adapter  {error.problems[0].why}"]
    described = built.adapted.describe()
    what = f"{described}; " if described else ""
    trained = sum(prod(shape) for shape in built.trained)
    return [f"adapter  {what}{trained:,} of {built.parameters:,} parameters train ({trained / built.parameters:.2%})"]

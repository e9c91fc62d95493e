"""gym-core: the kernel of Gym. It knows components, recipes, hooks and runs; it knows no algorithm and imports no torch."""

from __future__ import annotations

import os

from gym_core.lazy import lazily

# Pydantic would load plugins of its own from whatever is installed; one unreadable distribution would stop it.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

__version__ = "0.1.0"

_HOMES = {
    "gym_core.artifact": "Artifact",
    "gym_core.component": "Component Config Slot",
    "gym_core.errors": "BusyError DataError GymError Interrupted PluginError Problem RecipeError",
    "gym_core.execution": "execute",
    "gym_core.hooks": "Trainer hookimpl hookspec",
    "gym_core.kinds": "Algorithm Backend Callback Exporter Quantizer Strategy",
    "gym_core.files": "cache_dir",
    "gym_core.recipe": "Recipe load_recipe",
    "gym_core.run": "Outcome Run",
    "gym_core.train": "Train",
}
__all__, __getattr__, __dir__ = lazily(__name__, _HOMES)

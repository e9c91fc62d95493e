"""gym-core: the kernel of Gym. It knows components, recipes, hooks and runs; it knows no algorithm and imports no torch.

The public names below are imported on first use, so that listing plugins stays instant.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "gym_core.artifact": ("Artifact",),
    "gym_core.component": ("Component", "Config", "Flat", "Slot"),
    "gym_core.errors": (
        "BusyError",
        "DataError",
        "GymError",
        "Interrupted",
        "PluginError",
        "Problem",
        "RecipeError",
    ),
    "gym_core.hooks": ("hookimpl", "hookspec"),
    "gym_core.kinds": (
        "Adapter",
        "Algorithm",
        "Backend",
        "Callback",
        "Data",
        "Exporter",
        "Family",
        "Format",
        "Merger",
        "Optimizer",
        "Quantizer",
        "Scheduler",
        "Source",
        "Strategy",
        "Template",
        "Trainer",
    ),
    "gym_core.location": ("cache_dir", "locate"),
    "gym_core.recipe": ("Recipe", "load_recipe"),
    "gym_core.run": ("Outcome", "Run", "execute"),
    "gym_core.train": ("Train",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: PLE0604 - the table above is the one list of public names
    *_HOME_OF,
]


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'gym_core' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*globals(), *_HOME_OF])

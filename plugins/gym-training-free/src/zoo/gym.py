"""`from zoo.gym import TrainingFreeGRPO, GRPOConfig`: every name of Gym's Python API, without the module it is in elsewhere.

`zoo` is a namespace package, so that other distributions may bring parts of it.
"""

from __future__ import annotations

from typing import Any

from gym_core.discovery import catalogue, entries
from gym_core.errors import PluginError
from gym_core.loading import find, load


def __getattr__(name: str) -> Any:
    """Import a name. Raises ImportError that says what to install, AttributeError for a name nobody knows."""
    if name not in (known := _names()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return load(find("facade", known[name]))
    except PluginError as error:
        raise ImportError(f"{__name__}.{name} cannot be imported: {error}", name=__name__) from error


def __dir__() -> list[str]:
    """List the names of all packages of Gym, installed or not."""
    return sorted(_names())


def _names() -> dict[str, str]:
    """Return the names of the API in full, by their last part."""
    listed = [name.partition("/")[2] for name in catalogue() if name.startswith("facade/")]
    return {full.rpartition(".")[2]: full for full in (*listed, *(entry.name for entry in entries("facade")))}

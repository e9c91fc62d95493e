"""`from zoo.gym import BitDeltaConfig`: the names of the Python API `gym`, without the module that each stands in.

Each is imported on first use. This folder is no package of its own, so that others may put modules into `zoo` as well.
"""

from __future__ import annotations

from typing import Any

from gym_core.discovery import catalogue, entries
from gym_core.errors import PluginError
from gym_core.loading import find, load


def __getattr__(name: str) -> Any:
    """Import a name. Raises ImportError that says what to install, AttributeError for a name nobody knows."""
    for full in _names():
        if full.rpartition(".")[2] == name:
            try:
                return load(find("facade", full))
            except PluginError as error:
                raise ImportError(f"zoo.gym.{name} cannot be imported: {error}", name=f"zoo.gym.{name}") from error
    owners = {owner for known, owner in catalogue().items() if _facade(known).rpartition(".")[2] == name}
    if owners:
        owner = min(owners)
        raise ImportError(f"zoo.gym.{name} comes with {owner}, which is not installed: pip install {owner}")
    raise AttributeError(f"module 'zoo.gym' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(full.rpartition(".")[2] for full in _names())


def _names() -> list[str]:
    return sorted(entry.name for entry in entries("facade"))


def _facade(known: str) -> str:
    kind, _, name = known.partition("/")
    return name if kind == "facade" else ""

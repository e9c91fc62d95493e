"""`from gym import Trainer`, `from gym.quantization import BitDeltaConfig`: the Python API under its own name.

Every name is an entry point of the group `gym.facade`, imported on first use. One file acts as a package: it overwrites nothing
of the retired `gym` of OpenAI, which Python prefers where both are installed. Libraries import `gym_core`, never this.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gym_core.discovery import catalogue, entries
from gym_core.errors import PluginError

__path__: list[str] = []  # makes `gym.train` importable; its modules are made below, none is found on a path


def _names() -> list[str]:
    known = {name.partition("/")[2] for name in catalogue() if name.startswith("facade/")}
    return sorted({*known, *(entry.name for entry in entries("facade"))})


def _resolve(part: str, name: str) -> Any:
    """Import a name. Raises ImportError that says what to install, AttributeError for a name nobody knows."""
    full = f"{part}.{name}" if part else name
    if full in _parts:
        return _parts[full]
    shown = f"gym.{full}"
    if full not in _names():
        raise AttributeError(f"module {shown.rpartition('.')[0]!r} has no attribute {name!r}")
    from gym_core.loading import find, load

    try:
        return load(find("facade", full))
    except PluginError as error:
        raise ImportError(f"{shown} cannot be imported: {error}", name=shown) from error


def _list(part: str) -> list[str]:
    return [name.rpartition(".")[2] for name in _names() if name.rpartition(".")[0] == part]


_parts: dict[str, ModuleType] = {}
for _part in {name.rpartition(".")[0] for name in _names()} - {""}:
    _parts[_part] = _module = ModuleType(f"gym.{_part}", f"Names of Gym's Python API: {', '.join(_list(_part))}.")
    _module.__spec__ = ModuleSpec(_module.__name__, None)
    _module.__dict__.update(__getattr__=partial(_resolve, _part), __dir__=partial(_list, _part))
    sys.modules[_module.__name__] = _module

__getattr__, __dir__ = partial(_resolve, ""), partial(_list, "")

if __name__ == "__main__":
    from gym_core.cli import main

    main()

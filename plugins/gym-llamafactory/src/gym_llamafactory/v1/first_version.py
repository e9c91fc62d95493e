"""Keys of the first version that a file of the second one means, before they are translated to sections of a recipe."""

from __future__ import annotations

from typing import Any

from gym_core.errors import Problem
from gym_core.sections import Findings
from gym_llamafactory.v1 import keys


class FirstVersionKeys:
    """Keys of the first version, and what the user called them."""

    def __init__(self, found: Findings) -> None:
        """Note problems and places in `found`."""
        self.found = found
        self.keys: dict[str, Any] = {}
        self.old: dict[str, str] = {}
        self.pairs = False  #: whether rows hold two answers

    def put(self, key: str, value: Any, name: str = "") -> None:
        """Set a key under its name in the first version."""
        name = name or keys.RENAMED.get(key, key)
        self.keys[name], self.old[name] = value, key
        self.found.marks[name,] = self.found.where((key,))

    def problem(self, key: str, why: str, fix: str = "") -> None:
        """Note what is wrong with a key."""
        self.found.problems.append(Problem(why, self.found.where((key.partition(".")[0],)), key, fix))

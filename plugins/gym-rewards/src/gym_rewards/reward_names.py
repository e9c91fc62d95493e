"""What rewards and other components are called: in logs, in options and in messages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from gym_core.component import Component
from gym_core.discovery import Entry, entries
from gym_core.errors import PluginError
from gym_core.loading import load
from gym_rewards.reward import Reward


def named(rewards: Sequence[Reward]) -> dict[str, Reward]:
    """Return rewards by the names that recipes use; a second `python` is `python-2`."""
    found: dict[str, Reward] = {}
    for reward in rewards:
        name = _name(reward, type(reward).__name__.lower())
        number = 1 + sum(other == name or other.startswith(f"{name}-") for other in found)
        found[name if number == 1 else f"{name}-{number}"] = reward
    return found


def label(name: str, component: Component) -> str:
    """Return the name of a component in a message, with the package that brings it."""
    entry = _entry(component)
    owner = f"{entry.dist} {entry.version}" if entry else type(component).__module__
    return f"`{name}` ({owner})"


def called(component: Component) -> str:
    """Return the name that recipes use for a component, with the package that brings it."""
    return label(_name(component, type(component).__name__), component)


def _name(component: Component, otherwise: str) -> str:
    entry = _entry(component)
    return entry.name if entry else otherwise


def _entry(component: Component) -> Entry | None:
    """Return the entry point that leads to the class of a component, by whatever path; None where it came without one.

    Nothing is imported for it: a module that a class came from is there already.
    """
    for entry in entries(component.kind):
        if entry.value.partition(":")[0] in sys.modules:
            with suppress(PluginError):  # of another class in that module
                if load(entry) is type(component):
                    return entry
    return None

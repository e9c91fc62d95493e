"""What rewards and other components are called: in logs, in options and in messages."""

from __future__ import annotations

from collections.abc import Sequence

from gym_core.component import Component
from gym_core.discovery import entries
from gym_rewards.reward import Reward


def named(rewards: Sequence[Reward]) -> dict[str, Reward]:
    """Return rewards by the names that recipes use; a second `python` is `python-2`."""
    known = {entry.value: entry.name for entry in entries("rewards")}
    found: dict[str, Reward] = {}
    for reward in rewards:
        name = known.get(_value(reward), type(reward).__name__.lower())
        number = 1 + sum(other == name or other.startswith(f"{name}-") for other in found)
        found[name if number == 1 else f"{name}-{number}"] = reward
    return found


def label(name: str, component: Component) -> str:
    """Return the name of a component in a message, with the package that brings it."""
    mine = (entry for entry in entries(component.kind) if entry.value == _value(component))
    owner = next((f"{entry.dist} {entry.version}" for entry in mine), type(component).__module__)
    return f"`{name}` ({owner})"


def called(component: Component) -> str:
    """Return the name that recipes use for a component, with the package that brings it."""
    known = {entry.value: entry.name for entry in entries(component.kind)}
    return label(known.get(_value(component), type(component).__name__), component)


def _value(component: Component) -> str:
    """Return what the entry point of a component says."""
    cls = type(component)
    return f"{cls.__module__}:{cls.__qualname__}"

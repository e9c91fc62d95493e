"""Whose code an unexpected error arose in: the plugin of a run whose frame is the innermost of its traceback."""

from __future__ import annotations

from collections.abc import Iterable
from traceback import walk_tb

from gym_core.sections import Resolved


def owner(error: BaseException, resolved: Iterable[Resolved]) -> str:
    """Return `distribution version (gym.kind: name)` of the component in whose package an error arose; empty for none."""
    owners: dict[str, str] = {}
    for item in resolved:
        label = f"{item.dist} {item.version} (gym.{item.kind}: {item.name})"
        for reference in (item.target, item.config):  # the module of a component is its own, a package may have several
            module = reference.partition(":")[0]
            owners.setdefault(module, label)
            owners.setdefault(module.partition(".")[0], label)
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in walk_tb(error.__traceback__)]
    known = [owners.get(module) or owners.get(module.partition(".")[0], "") for module in modules]
    return next(filter(None, reversed(known)), "")

"""Finds the plugin that raised an unexpected error: the component whose module has the innermost frame of the traceback."""

from __future__ import annotations

from collections.abc import Iterable
from traceback import walk_tb

from gym_core.sections import Resolved


def owner(error: BaseException, resolved: Iterable[Resolved]) -> str:
    """Return `distribution version (gym.kind: name)` of the component in whose module an error was raised; empty for none.

    Where a module belongs to several components, only the distribution is returned.
    """
    items, owners = list(resolved), dict[str, str]()
    dists = {_package(item.config): item.dist for item in items}
    for item in items:
        dist = f"{item.dist} {item.version}"
        label = f"{dist} (gym.{item.kind}: {item.name})"
        modules = {reference.partition(":")[0] for reference in (item.target, item.config)}
        # a target may be another's
        own = {each for each in modules if dists.get(_package(each), item.dist) == item.dist}
        for module in {_package(item.config), *own}:
            owners[module] = label if owners.get(module, label) == label else dist
    passed = [str(frame.f_globals.get("__name__", "")) for frame, _ in walk_tb(error.__traceback__)]
    known = [owners.get(module) or owners.get(_package(module), "") for module in passed]
    return next(filter(None, reversed(known)), "")


def _package(reference: str) -> str:
    return reference.partition(":")[0].partition(".")[0]

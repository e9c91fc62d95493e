"""Finds the plugin that raised an unexpected error: the component whose module has the innermost frame of the traceback."""

from __future__ import annotations

from collections.abc import Iterable
from traceback import walk_tb

from gym_core.component import construct
from gym_core.discovery import installed
from gym_core.errors import RAISED, UNEXPECTED, unexpected
from gym_core.sections import Resolved


def owner(error: BaseException, resolved: Iterable[Resolved]) -> str:
    """Return `distribution version (gym.kind: name)` of the component in whose module an error was raised; empty for none."""
    items, owners = list(resolved), dict[str, str]()
    dists = {_package(item.config): item.dist for item in items}
    for item in items:
        dist = f"{item.dist} {item.version}"
        label = f"{dist} (gym.{item.kind}: {item.name})"
        modules = {reference.partition(":")[0] for reference in (item.target, item.config)}  # a target may be another's
        own = {each for each in modules if dists.get(_package(each), item.dist) == item.dist}
        for module in {_package(item.config), *own}:
            owners[module] = label if owners.get(module, label) == label else dist  # of several components
    known = (owners.get(module) or owners.get(_package(module), "") for module in _passed(error))
    return next(filter(None, known), "")


def raised(error: BaseException) -> str:
    """Return what `unexpected` does, and of an error outside a run the package among all plugins in which it was raised."""
    if (told := unexpected(error)) != UNEXPECTED:
        return told
    try:
        listed = [each for many in installed().entries.values() for each in many]
    except Exception:  # that was the error
        return UNEXPECTED
    owners = {_package(each.value): f"{RAISED}{each.dist} {each.version}" for each in listed}
    return next(filter(None, (owners.get(_package(module)) for module in _passed(error))), UNEXPECTED)


def _passed(error: BaseException) -> list[str]:
    """Return the modules of a traceback, innermost first: where a component is built, that of what it points at."""
    modules: list[str] = []
    for frame, _ in walk_tb(error.__traceback__):
        built = frame.f_locals["reference"] if frame.f_code is construct.__code__ else ""
        modules.append(built.partition(":")[0] or str(frame.f_globals.get("__name__", "")))
    return modules[::-1]


def _package(reference: str) -> str:
    return reference.partition(":")[0].partition(".")[0]

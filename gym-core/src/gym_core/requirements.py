"""Checks the requirements of distributions (`Requires-Dist`) against what is installed, from metadata only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from gym_core.discovery import installed
from gym_core.metadata import canonical, read_headers


class Unmet(NamedTuple):
    """One requirement that is not met."""

    owner: str  #: distribution that declares it
    needs: str  #: requirement as pip takes it, such as `torch>=2.4`
    why: str


@cache
def version_of(dist: str) -> str:
    """Return the version of an installed distribution, or an empty string."""
    folder = installed().folders.get(canonical(dist))
    try:
        return read_headers(folder.path)["Version"][0] if folder else version(dist)  # in a zip file, say
    except (PackageNotFoundError, OSError, UnicodeDecodeError, LookupError):
        return folder.version if folder else ""


@cache
def plugins() -> frozenset[str]:
    """Return the distributions with entry points of Gym."""
    return frozenset(entry.dist for group in installed().entries.values() for entry in group)


def unmet(dist: str) -> list[Unmet]:
    """Return the unmet requirements of a distribution and of the plugins that it requires, each once."""
    return list(dict.fromkeys(_walk(dist, frozenset({""}), set())))


def _walk(dist: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> Iterator[Unmet]:
    if (dist, extras) in seen:
        return
    seen.add((dist, extras))
    try:
        declared = read_headers(installed().folders[dist].path).get("Requires-Dist", [])
    except (OSError, UnicodeDecodeError):  # discovery reports the metadata themselves
        return
    for line in declared:
        try:
            needed = Requirement(line)
            if needed.marker and not any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                continue
        except (InvalidRequirement, ValueError):
            yield Unmet(dist, line[:100], "which cannot be read")
            continue
        name, found = canonical(needed.name), version_of(needed.name)
        wanted = f"{needed.name}{needed.specifier}"
        if not found:
            yield Unmet(dist, wanted, "not installed")
        elif not _holds(needed, found):
            yield Unmet(dist, wanted, f"{found} is installed")
        elif name in plugins():
            yield from _walk(name, frozenset({"", *needed.extras}), seen)


def _holds(needed: Requirement, found: str) -> bool:
    try:
        return needed.specifier.contains(found, prereleases=True)
    except InvalidVersion:
        return not needed.specifier

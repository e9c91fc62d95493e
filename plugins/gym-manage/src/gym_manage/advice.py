"""Whose an option is that no component of a recipe has: said in the error, where this package is installed."""

from __future__ import annotations

from functools import cache

from gym_core.sections import SECTION_OF
from gym_manage.inspection import About, inspect_all

SECONDS = 5.0  #: for each package; one that takes longer is not asked


@cache
def told() -> dict[str, list[About]]:
    """Return what every installed component is, asked once."""
    return inspect_all(lambda entry: entry.kind in SECTION_OF, SECONDS)


def advise(key: str) -> tuple[str, str] | None:
    """Return what an unknown key is and what to do about it; None where no installed component has such an option.

    The component that the key is named after goes first, then the one that others inherit the option from.
    """
    for kind, section in SECTION_OF.items():
        having = [
            (name not in key, about.depth, name, dist)
            for dist, group in told().items()
            for about in group
            if about.kind == kind and any(option.name == key for option in about.options)
            for name in about.names
        ]
        if having:
            _, _, name, dist = min(having)
            noun = "exporter" if section == "export" else section
            return f"belongs to {noun} `{name}` ({dist})", f"set `{section}: {name}`"
    return None

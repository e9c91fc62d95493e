"""Whose an option is that no component of a recipe has: said in the error, where this package is installed."""

from __future__ import annotations

from functools import cache

from gym_core.sections import SECTION_OF
from gym_manage.elsewhere import NAMES
from gym_manage.inspection import About, inspect_all

SHOWN = 12  #: most components of a section that an error names
SECONDS = 5.0  #: for each package; one that takes longer is not asked


@cache
def told() -> dict[str, list[About]]:
    """Return what every installed component is, asked once."""
    return inspect_all(lambda entry: entry.kind in SECTION_OF, SECONDS)


def advise(key: str, near: str = "") -> tuple[str, str] | None:
    """Return what an unknown key is and what to do about it; None where no other software has it and no installed component.

    Components are asked where no right key is `near`, for that takes its time; those that the key is named after go first.
    """
    if key in NAMES:
        return "unknown key", NAMES[key]
    if near:
        return None
    homes = {section: found for kind, section in SECTION_OF.items() if (found := _having(kind, key))}
    if not homes:
        return None
    (section, names), *others = homes.items()
    if len(names) == 1 and not others:
        [(name, dist)] = names.items()
        return f"belongs to `{section}: {name}` ({dist})", f"set `{section}: {name}`"
    told = [f"`{part}` {', '.join(list(of)[:SHOWN])}{', ...' * (len(of) > SHOWN)}" for part, of in homes.items()]
    return f"belongs to {'; '.join(told)}", "name the one that you mean, which this recipe does not"


def _having(kind: str, key: str) -> dict[str, str]:
    """Return the components of a kind that have an option, each with its package."""
    having = [
        (name not in key, name, dist)
        for dist, group in told().items()
        for about in group
        if about.kind == kind and any(option.name == key for option in about.options)
        for name in about.names
    ]
    return {name: dist for _, name, dist in sorted(having)}

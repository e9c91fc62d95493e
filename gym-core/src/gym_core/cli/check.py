"""The process in which `gym plugins check` imports one distribution: `python -m gym_core.cli.check gym-foo`."""

from __future__ import annotations

import json
import sys

from stevedore.driver import DriverManager

from gym_core.discovery import Entry, entries, installed
from gym_core.errors import PluginError, Problem
from gym_core.loading import find, load, load_component

_PLAIN = {"flat", "facade", "commands", "hooks", "kinds", "remarks"}  #: groups whose objects are not components


def problems_of(entry: Entry) -> list[Problem]:
    """Load one entry point as a run would, then as any stevedore host would; return what went wrong."""
    try:
        if entry.kind in _PLAIN:
            load(entry)
        else:
            load_component(entry.kind, entry.qualified)
        if sum(other.name == entry.name for other in entries(entry.kind)) > 1 and entry.kind != "facade":
            find(entry.kind, entry.name)
        DriverManager(namespace=f"gym.{entry.kind}", name=entry.name, warn_on_missing_entrypoint=False)
    except PluginError as error:
        return error.problems
    return []


def main(dist: str) -> None:
    """Print the problems of a distribution as JSON after a NUL, so that what a plugin prints does not matter."""
    owned = [entry for group in installed().entries.values() for entry in group if entry.dist == dist]
    problems = list(dict.fromkeys(problem for entry in owned for problem in problems_of(entry)))
    sys.stdout.write("\n\0" + json.dumps([problem.to_json() for problem in problems]))


if __name__ == "__main__":
    main(sys.argv[1])

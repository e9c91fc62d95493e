"""Laws of hook plugins: they fit the hooks, and are there only where a recipe names them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

from gym_core.hooks import HookSpecs, manager_for
from gym_testkit.bench import Bench
from gym_testkit.distribution import Distribution
from gym_testkit.law import Laws


def _subjects(dist: Distribution) -> Iterator[tuple[str, EntryPoint]]:
    yield from ((entry.name, entry) for entry in dist.entry_points if entry.group == "gym.hooks")


laws = Laws("hook", _subjects)
HOOKS = [name for name in vars(HookSpecs) if not name.startswith("_")]


def _implemented(names: list[str]) -> list[str]:
    """Return `hook plugin` for every implementation of a run that names these hooks, but the kernel's own."""
    manager = manager_for(names)
    found = [(hook, each.plugin_name) for hook in HOOKS for each in getattr(manager.hook, hook).get_hookimpls()]
    return sorted(f"{hook} {plugin}" for hook, plugin in found if plugin != "defaults")


@laws("implements a hook, with arguments that it has")
def fits(entry: EntryPoint, bench: Bench) -> None:
    """It registers without an error and is called at one hook at least."""
    assert _implemented([entry.name]), f"it implements none of {', '.join(HOOKS)}"


@laws("is made anew for each run")
def anew(entry: EntryPoint, bench: Bench) -> None:
    """Two runs in one process have the same implementations, and one that names no hook has none."""
    assert _implemented([entry.name]) == _implemented([entry.name])
    assert _implemented([]) == []

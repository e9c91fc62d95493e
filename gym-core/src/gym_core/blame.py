"""Whose code an unexpected error arose in: the plugin of a run whose frame is the innermost of its traceback."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
    for module in reversed(list(_modules(error))):
        found = owners.get(module) or owners.get(module.partition(".")[0])
        if found:
            return found
    return ""


def _modules(error: BaseException) -> Iterator[str]:
    """Yield the modules of the frames of a traceback, outermost first."""
    trace = error.__traceback__
    while trace:
        yield str(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next

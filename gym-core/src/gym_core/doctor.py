"""What this machine and this installation are, and what is wrong with them. No plugin is imported."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement

from gym_core.discovery import Entry, installed, read_headers
from gym_core.location import cache_dir


class Check(NamedTuple):
    """One thing looked at."""

    name: str
    ok: bool
    detail: str
    fix: str = ""  #: what to do where it is not ok


def checks() -> list[Check]:
    """Look at Python, the packages, the disk and what plugins declare, and return what was found."""
    return [*_machine(), *_distributions(), *_conflicts()]


def _machine() -> Iterator[Check]:
    yield Check("python", True, platform.python_version())
    spec, own = find_spec("gym"), Path(__file__).parents[1] / "gym.py"
    ours = spec is not None and spec.origin is not None and Path(spec.origin) == own
    yield Check("import gym", True, "is Gym" if ours else "is another package: write `gym_core`, or uninstall it")
    for name in ("torch", "transformers"):
        yield Check(name, True, _version(name) or "not installed; plugins that need it say so")
    yield Check("processors", True, f"{os.cpu_count()} ({platform.machine()})")
    cache = cache_dir()
    home = next(path for path in (cache, *cache.absolute().parents) if path.exists())
    writable = home.is_dir() and os.access(home, os.W_OK)
    yield Check("cache", writable, str(cache), "set GYM_CACHE to a directory you can write to")
    for name, path in (("disk here", Path.cwd()), ("disk of the cache", home)):
        free = shutil.disk_usage(path).free / 2**30
        yield Check(name, free >= 1, f"{free:.1f} GiB free", "free at least 1 GiB: a run writes checkpoints")


def _distributions() -> Iterator[Check]:
    """Compare what each distribution with a plugin declares (`Requires-Dist`) with what is installed."""
    owners = {entry.dist: entry for group in installed().entries.values() for entry in group}
    for dist, entry in sorted(owners.items()):
        unmet = list(_unmet(entry))
        needs = f" needs {', '.join(text for text, _ in unmet)}" if unmet else ""
        fix = f"pip install {' '.join(repr(text) for _, text in unmet)}"
        yield Check(dist, not unmet, entry.version + needs, fix)
    for problem in installed().problems:
        yield Check(problem.where, False, problem.why, problem.fix)


def _unmet(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield, for each requirement that does not hold, how to say it and what to install."""
    for line in read_headers(entry.metadata).get("Requires-Dist", []):
        try:
            needed = Requirement(line)
        except InvalidRequirement:
            yield f"`{line}`, which is no valid requirement", f"{entry.dist} --upgrade"
            continue
        if needed.marker and not needed.marker.evaluate({"extra": ""}):
            continue
        found = _version(needed.name)
        if not found or not needed.specifier.contains(found, prereleases=True):
            wanted = f"{needed.name}{needed.specifier}"
            yield f"{wanted} ({found or 'not installed'})", wanted


def _conflicts() -> Iterator[Check]:
    for kind, group in installed().entries.items():
        names: dict[str, list[Entry]] = {}
        for entry in group:
            names.setdefault(entry.name, []).append(entry)
        for name, owners in names.items():
            if len(owners) > 1:
                both = " and ".join(f"{entry.dist} {entry.version}" for entry in owners)
                fix = f"write {owners[0].qualified} in recipes"
                yield Check(f"{kind}/{name}", False, f"brought by {both}", fix)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""

"""`gym doctor`: what this machine and this installation are, and what is wrong with them. No plugin is imported."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click

import gym_core
from gym_core import errors
from gym_core.discovery import ambiguous, installed
from gym_core.files import cache_dir
from gym_core.requirements import unmet, version_of


class Check(NamedTuple):
    """One thing looked at."""

    name: str
    ok: bool
    detail: str
    fix: str = ""  #: what to do where it is not ok


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Check this machine and its installation, without importing a plugin. Exit code 1 when something is wrong."""
    found = checks()
    if as_json:
        click.echo(json.dumps({"checks": [check._asdict() for check in found]}, indent=2))
    else:
        for check in found:
            mark = click.style("ok  ", fg="green") if check.ok else click.style("FAIL", fg="red")
            click.echo(f"{mark} {errors.printable(check.name)}: {errors.printable(check.detail)}")
            if not check.ok and check.fix:
                click.echo(f"     -> {errors.printable(check.fix)}")
    if not all(check.ok for check in found):
        click.get_current_context().exit(errors.FAILED)


def checks() -> list[Check]:
    """Look at Python, the packages, the disk and what plugins declare, and return what was found."""
    return [*_machine(), *_distributions(), *_conflicts()]


def _machine() -> Iterator[Check]:
    yield Check("python", True, platform.python_version())
    spec, own = find_spec("gym"), Path(gym_core.__file__).parents[1] / "gym.py"
    ours = spec is not None and spec.origin is not None and Path(spec.origin) == own
    yield Check("import gym", True, "is Gym" if ours else "is another package: write `gym_core`, or uninstall it")
    for name in ("torch", "transformers"):
        yield Check(name, True, version_of(name) or "not installed; plugins that need it say so")
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
        lacking = [item for item in unmet(dist) if item.owner == dist]
        needs = f" needs {', '.join(f'{item.needs} ({item.why})' for item in lacking)}" if lacking else ""
        fix = f"pip install {' '.join(repr(item.needs) for item in lacking)}"
        yield Check(dist, not lacking, entry.version + needs, fix)
    for problem in installed().problems:
        yield Check(problem.where, False, problem.why, problem.fix)


def _conflicts() -> Iterator[Check]:
    for owners in ambiguous():
        both = " and ".join(f"{entry.dist} {entry.version}" for entry in owners[:3])
        name = f"{owners[0].kind}/{owners[0].name}"
        yield Check(
            name,
            False,
            f"brought by {both}",
            f"write {owners[0].qualified} in recipes, or `gym plugins choose {name} {owners[0].dist}`",
        )

"""`gym plugins install` and `uninstall`: pip of this very Python, and what it brought for Gym."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import PathFinder

import click

from gym_core import errors
from gym_core.discovery import Entry, installed
from gym_core.metadata import canonical


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="ARGUMENT...")
def install(arguments: tuple[str, ...]) -> None:
    """Install packages through pip of this Python, and say what they bring. Every ARGUMENT is pip's: names, paths, options.

    Example: `gym plugins install gym-grpo ./my-plugin`
    """
    before = set(_all())
    _pip("install", *arguments)
    new = sorted(set(_all()) - before)
    click.echo(
        "".join(f"+ {e.kind}/{e.name}  {e.dist} {e.version}\n" for e in new) or "nothing new for Gym\n", nl=False
    )
    dist = sorted({entry.dist for entry in new})
    if dist:
        click.echo(f"`gym plugins check` imports them; `gym plugins disable {dist[0]}` sets one aside")


@click.command()
@click.argument("distributions", nargs=-1, required=True)
def uninstall(distributions: tuple[str, ...]) -> None:
    """Uninstall packages that bring plugins, through pip of this Python.

    Example: `gym plugins uninstall gym-grpo`
    """
    known = {entry.dist for entry in _all()} - {"gym-core"}
    for name in distributions:
        if canonical(name) not in known:
            why = "is Gym itself" if canonical(name) == "gym-core" else "is no installed package that brings plugins"
            raise errors.PluginError(why, where=name, fix="`gym plugins list` names them; for others use pip")
    _pip("uninstall", "--yes", *distributions)


def _all() -> list[Entry]:
    installed.cache_clear()
    return [entry for group in installed().entries.values() for entry in group]


def _pip(*arguments: str) -> None:
    if PathFinder.find_spec("pip") is None:
        # `util.find_spec` asks setuptools too, which then leaves distutils alone for good
        fix = f"`uv pip {arguments[0]} --python {sys.executable} ...`, or `{sys.executable} -m ensurepip`"
        raise errors.GymError("this Python has no pip", where=sys.executable, fix=fix)
    status = subprocess.run([sys.executable, "-m", "pip", *arguments], check=False).returncode
    if status:
        kind = errors.RecipeError if status == 2 else errors.GymError  # pip's own sign of a wrong command line
        raise kind(f"pip {arguments[0]} ended with status {status}", fix="what it printed says why")

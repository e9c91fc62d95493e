"""`gym plugins trace`: which hook implementations a run would call, in which order, and whose they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

import gym_core
from gym_core import errors
from gym_core.hooks import HookSpecs, manager_for
from gym_core.loading import find
from gym_core.recipe import load_recipe


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def trace(recipe: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show which hook implementations a run of RECIPE would call, in their order, and which packages they are from.

    Example: `gym plugins trace recipe.yaml`
    """
    loaded = load_recipe(recipe, overrides)
    traced = calls(loaded.hooks)
    if as_json:
        click.echo(json.dumps({"hooks": traced}, indent=2))
        return
    for hook, called in traced.items():
        click.secho(hook, bold=True)
        for item in called:
            click.echo(errors.printable(f"  {item['how']:<9} {item['dist']} {item['version']}  {item['code']}"))


def calls(names: Sequence[str]) -> dict[str, list[dict[str, str]]]:
    """Return, for each hook in the order of a run, what would be called, first to last: how, its package, its code.

    A `wrapper` runs around what follows it; of the others the first that returns something decides.
    """
    manager = manager_for(names)
    owners = {entry.qualified: entry for entry in (find("hooks", name) for name in names)}
    traced: dict[str, list[dict[str, str]]] = {}
    for hook in (name for name, function in vars(HookSpecs).items() if callable(function)):
        for call in reversed(getattr(manager.hook, hook).get_hookimpls()):
            owner, how = owners.get(call.plugin_name), "wrapper" if call.wrapper or call.hookwrapper else "call"
            dist, version = (owner.dist, owner.version) if owner else ("gym-core", gym_core.__version__)
            code = f"{call.function.__module__}:{call.function.__qualname__}"
            traced.setdefault(hook, []).append({"how": how, "dist": dist, "version": version, "code": code})
    return traced

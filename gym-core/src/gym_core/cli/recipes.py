"""The commands that take a recipe: train, validate."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from gym_core import errors
from gym_core.recipe import load_recipe

_recipe = click.argument("recipe", type=click.Path(path_type=Path))
_overrides = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command()
@_recipe
@_overrides
@click.option("--nproc", metavar="N", help="Processes on this machine; the same as `distributed.processes=N`.")
@_json
def train(recipe: Path, overrides: tuple[str, ...], nproc: str | None, as_json: bool) -> int:
    """Run a recipe. The same command again continues an interrupted run.

    KEY=VALUE overrides a key in either dialect. Example: `gym train recipe.yaml train.epochs=1 learning_rate=1e-4`
    """
    from gym_core.execution import execute
    from gym_core.files import expanded
    from gym_core.record import RunRecord

    overrides = (*overrides, f"distributed.processes={nproc}") if nproc else overrides
    loaded = load_recipe(recipe, overrides)
    if RunRecord(expanded(loaded.output) / "run.json").read().get("status") != "finished":
        loaded.check()  # before any process is started
    strategy = loaded.distributed
    if strategy and (code := strategy.launch(["train", str(recipe), *overrides, *["--json"] * as_json])) is not None:
        return code
    with redirect_stdout(sys.stderr):  # packages that the run uses may print; what the command answers stands alone
        outcome = execute(loaded)
    if outcome.quiet:
        return errors.OK
    if as_json:
        click.echo(json.dumps(outcome.to_json(), indent=2))
    elif outcome.repeated:
        click.echo(f"{outcome.output} is finished already; `train.overwrite=true` sets it aside and starts again")
    else:
        for path in (outcome.artifact.path, *outcome.exports):
            click.echo(f"wrote {path}")
    return errors.OK


@click.command()
@_recipe
@_overrides
@_json
def validate(recipe: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check a recipe, and that the data it names are there. Exit code 2: wrong recipe, 3: missing plugin, 4: missing data.

    Example: `gym validate recipe.yaml train.epochs=1`
    """
    from gym_core.hooks import manager_for

    loaded = load_recipe(recipe, overrides)
    loaded.check()
    manager_for(loaded.hooks)
    if as_json:
        click.echo(json.dumps({"problems": [], "fingerprint": loaded.fingerprint()}))
    else:
        click.echo(f"{recipe} is valid ({len(loaded.resolved)} components)")

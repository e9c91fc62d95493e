"""The commands that take a recipe: train, validate, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gym_core import errors
from gym_core.recipe import as_recorded, load_recipe
from gym_core.yamlfile import parse_scalar

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

    KEY=VALUE overrides a key in either dialect: `train.epochs=1`, `learning_rate=1e-4`.
    """
    from gym_core.record import RunRecord
    from gym_core.run import execute

    overrides = (*overrides, f"distributed.processes={nproc}") if nproc else overrides
    loaded = load_recipe(recipe, overrides)
    if RunRecord(Path(loaded.output).expanduser() / "run.json").read().get("status") != "finished":
        loaded.check()  # before any process is started
    strategy = loaded.distributed
    code = strategy.launch(["train", str(recipe), *overrides, *["--json"] * as_json]) if strategy else None
    if code is not None:
        return code
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
    """Check a recipe, and that the data it names are there. Exit code 2: wrong recipe, 3: missing plugin, 4: missing data."""
    loaded = load_recipe(recipe, overrides)
    loaded.check()
    if as_json:
        click.echo(json.dumps({"problems": [], "fingerprint": loaded.fingerprint()}))
    else:
        click.echo(f"{recipe} is valid ({len(loaded.resolved)} components)")


@click.command()
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@_overrides
@click.option("--to", "name", default="safetensors", show_default=True, help="Exporter.")
@click.option("--into", type=click.Path(path_type=Path), help="Where to write; default RUN/export/NAME.")
@_json
def export(run: Path, overrides: tuple[str, ...], name: str, into: Path | None, as_json: bool) -> None:
    """Export what a finished RUN made, or RUN/checkpoints/step-...; `best` is the best one. KEY=VALUE sets an option."""
    from gym_core.artifact import Artifact
    from gym_core.record import RunRecord
    from gym_core.run import export as write

    checkpoint = run if run.parent.name == "checkpoints" else None
    run = run.parent.parent if checkpoint else run
    before = RunRecord(run / "run.json").read()
    if checkpoint and checkpoint.name == "best":
        checkpoint = checkpoint.with_name(str(before.get("best_checkpoint", "best")))
    if not checkpoint and before.get("status") != "finished":
        status = before.get("status", "no run.json")
        raise errors.BusyError(
            f"is no finished run (status: {status})",
            where=str(run),
            fix="finish it with `gym train`, or name a checkpoint in it: RUN/checkpoints/step-...",
        )
    pairs = (text.partition("=") for text in overrides)
    options: dict[str, Any] = {"name": name} | {key: parse_scalar(value) for key, _, value in pairs}
    artifact = Artifact.read(checkpoint) if checkpoint else Artifact.from_json(before["artifact"], run)
    target = name.rpartition("/")[2] + (f"-{artifact.path.name}" if checkpoint else "")
    path = write(as_recorded(before), run, artifact, options, into or run / "export" / target)
    click.echo(json.dumps({"export": str(path)}) if as_json else f"wrote {path}")

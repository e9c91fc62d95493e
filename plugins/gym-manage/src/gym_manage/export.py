"""`gym export`: what a run or one of its checkpoints holds, for another runtime."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gym_core import GymError
from gym_manage.recorded import options, recorded, reopened


@click.command()
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--to", "name", default="safetensors", show_default=True, help="Exporter.")
@click.option("--into", type=click.Path(path_type=Path), help="Where to write; default RUN/export/NAME.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export(run: Path, overrides: tuple[str, ...], name: str, into: Path | None, as_json: bool) -> None:
    """Export what a finished RUN made, or RUN/checkpoints/step-...; `best` is the best one. KEY=VALUE sets an option."""
    found = recorded(run)
    target = name.rpartition("/")[2] + found.label
    try:
        again, hook = reopened({**found.recipe, "export": [options(name, overrides)]}, found.output)
        path = hook.export(
            run=again,
            artifact=found.artifact,
            exporter=again.recipe.export[0],
            into=into or found.output / "export" / target,
        )
    except SystemExit as error:  # nobody may pass for success
        raise GymError(f"something called sys.exit({error.code!r}) before the export was done") from None
    click.echo(json.dumps({"export": str(path)}) if as_json else f"wrote {path}")

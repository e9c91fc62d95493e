"""`gym export`: what a run or one of its checkpoints holds, for another runtime."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import click

from gym_core import Artifact, BusyError, GymError
from gym_core.record import RunRecord
from gym_core.run import export as write
from gym_core.yamlfile import parse_scalar


@click.command()
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--to", "name", default="safetensors", show_default=True, help="Exporter.")
@click.option("--into", type=click.Path(path_type=Path), help="Where to write; default RUN/export/NAME.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export(run: Path, overrides: tuple[str, ...], name: str, into: Path | None, as_json: bool) -> None:
    """Export what a finished RUN made, or RUN/checkpoints/step-...; `best` is the best one. KEY=VALUE sets an option."""
    checkpoint = run if run.parent.name == "checkpoints" else None
    run = run.parent.parent if checkpoint else run
    before = RunRecord(run / "run.json").read()
    if checkpoint and checkpoint.name == "best":
        checkpoint = checkpoint.with_name(str(before.get("best_checkpoint", "best")))
    if not checkpoint and before.get("status") != "finished":
        status = before.get("status", "no run.json")
        raise BusyError(
            f"is no finished run (status: {status})",
            where=str(run),
            fix="finish it with `gym train`, or name a checkpoint in it: RUN/checkpoints/step-...",
        )
    pairs = (text.partition("=") for text in overrides)
    options: dict[str, Any] = {"name": name} | {key: parse_scalar(value) for key, _, value in pairs}
    artifact = Artifact.read(checkpoint) if checkpoint else Artifact.from_json(before["artifact"], run)
    target = name.rpartition("/")[2] + (f"-{artifact.path.name}" if checkpoint else "")
    try:
        path = write(_as_recorded(before), run, artifact, options, into or run / "export" / target)
    except SystemExit as error:  # nobody may pass for success
        raise GymError(f"something called sys.exit({error.code!r}) before the export was done") from None
    click.echo(json.dumps({"export": str(path)}) if as_json else f"wrote {path}")


def _as_recorded(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe in a `run.json` with every name said to be of the distribution that was used then."""
    recipe: dict[str, Any] = deepcopy(record["recipe"])
    for item in record.get("components", ()):
        place: Any = recipe
        with suppress(LookupError, TypeError):  # an option that nobody set is not written
            for part in item["path"] if item["selector"] else item["path"][:-1]:
                place = place[part]
            place[item["selector"] or item["path"][-1]] = f"{item['dist']}/{item['name']}"
    return recipe

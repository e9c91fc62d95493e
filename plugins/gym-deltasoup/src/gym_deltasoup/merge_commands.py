"""`gym merge`: one model of several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gym_core.errors import printable
from gym_core.record import plain
from gym_deltasoup.card import chosen
from gym_deltasoup.recipe import MergeRecipe, load_merge
from gym_manage.options_command import OptionsCommand

if TYPE_CHECKING:
    from gym_deltasoup.artifact_merge import MergedArtifact


@click.command(cls=OptionsCommand, options=MergeRecipe)
@click.argument("recipe", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the report.")
def merge(recipe: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Merge the models, adapters or deltas that a RECIPE names into one. KEY=VALUE replaces a value of it.

    Example: `gym merge soup.yaml merger=ties output=runs/merged`
    """
    said = load_merge(recipe, overrides)
    from gym_deltasoup.run_recipe import merged

    made = merged(said, lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(json.dumps(plain({"output": str(made.artifact.path), **made.report})))
        return
    for line in _lines(made):
        click.echo(line)


def _lines(made: MergedArtifact) -> list[str]:
    report: dict[str, Any] = dict(made.report)
    lines = [f"{printable(str(name))} was left out: it holds {why}" for name, why in sorted(report["excluded"].items())]
    if "truncation_error" in report:
        lines.append(f"rank {report['rank']} leaves out {report['truncation_error']:.3g} of the norm of the change")
    count = len(report["inputs"]) - len(report["excluded"])
    tolerated = report["tolerated_byzantine"]
    lines.append(f"merged {count} inputs with {report['merger']['name']}; it tolerates {tolerated} hostile among them")
    if taken := chosen(report):
        lines.append(f"it took {taken}")
    return [*lines, f"wrote {made.artifact.path}"]

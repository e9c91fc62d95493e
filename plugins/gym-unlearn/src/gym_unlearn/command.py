"""`gym unlearn report`: what a run forgot, what it kept, and how well the model still does."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gym_core import RecipeError
from gym_core.record import plain


@click.group()
def unlearn() -> None:
    """Measure what a model forgot."""


@unlearn.command()
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option("--retrained", help="A model that never saw the rows to forget: forget quality is measured against it.")
@click.option(
    "--beside", multiple=True, help="A further model to measure, such as the same quantized; may be repeated."
)
@click.option("--rows", "most", default=400, show_default=True, help="Most rows of each kind to measure on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def report(run: Path, retrained: str | None, beside: tuple[str, ...], most: int, as_json: bool) -> None:
    """Measure what the model of a finished RUN forgot, and kept.

    RUN may be RUN/checkpoints/step-... too. The rows are those of the recipe; the same is measured of the model before training,
    and of those that options name: a folder, a run, a family or a Hub id each. Writes RUN/unlearning.json and
    RUN/unlearning.png, and prints a table.

    Example: `gym unlearn report runs/forgot --retrained runs/never-saw`
    """
    if most < 1:
        raise RecipeError(f"{most} rows are none", where="command line", key="--rows", fix="name at least 1")
    from gym_unlearn.report.report import made  # torch takes its time
    from gym_unlearn.report.table import table

    found, files = made(run, retrained, beside, most)
    if as_json:
        click.echo(json.dumps(plain({**found, "files": files})))
    else:
        click.echo(table(found) + "\nwrote " + ", ".join(map(str, files)))

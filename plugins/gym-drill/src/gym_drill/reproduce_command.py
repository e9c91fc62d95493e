"""`gym reproduce`: the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gym_core import RecipeError
from gym_core.errors import FAILED, OK, printable
from gym_core.record import plain
from gym_torch.console import say, warn

if TYPE_CHECKING:
    from gym_drill.capsule import Capsule

DIFFERS_IN_ROUNDING = 6  #: exit code


@click.command()
@click.argument("source", metavar="RUN|CAPSULE", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--into", type=click.Path(path_type=Path), help="The folder; by default RUN.reproduced.")
@click.option("--steps", type=click.IntRange(min=1), help="Carry out only so many steps.")
@click.option(
    "--tolerance", type=click.FloatRange(min=0), help="What counts as rounding; by default 0.001 in fp32, else 0.02."
)
@click.option("--anyway", is_flag=True, help="Go on with other data or models.")
@click.option("--trust", is_flag=True, help="Carry out a capsule: its recipe can run code and send data as you.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def reproduce(
    source: Path,
    overrides: tuple[str, ...],
    into: Path | None,
    steps: int | None,
    tolerance: float | None,
    anyway: bool,
    trust: bool,
    as_json: bool,
) -> None:
    """Carry a finished run out once more in another folder, and say whether the same comes out.

    RUN is its folder, or the file that `gym capsule` made of it, which needs `--trust`. Exit code 0 for the same bits, 6 for the
    same within rounding, 1 for another result. The same command again goes on after a kill.

    Example: `gym reproduce runs/first --steps 20`
    """
    from gym_drill.reproduce import ROUNDED, SAME, carried_out, planned, text, verdict  # which import torch

    capsule = _opened(source, trust)
    beside = capsule.folder or Path.cwd() / capsule.name
    plan = planned(capsule, overrides, into or beside.with_name(f"{beside.name}.reproduced"), steps, anyway)
    for each in plan.told:
        warn(printable(str(each)))
    if extended := capsule.record.get("extended"):
        said = ", ".join(f"{before} to {after}" for before, after in extended.items())
        warn(
            f"this run was made longer ({said} steps): one of that length from the start had another learning rate on its way"
        )
    say(f"reproducing {capsule.name} in {plan.output}")
    seconds = carried_out(plan)
    report = verdict(plan, tolerance) | {"seconds": round(seconds, 1)}
    click.echo(json.dumps(plain(report)) if as_json else printable(text(report), keep="\n"))
    code = {SAME: OK, ROUNDED: DIFFERS_IN_ROUNDING}.get(report["verdict"], FAILED)
    if code:
        click.get_current_context().exit(code)


def _opened(source: Path, trust: bool) -> Capsule:
    """Return a run, or a capsule: a recipe of somebody else names functions that it calls, and addresses that it sends to."""
    from gym_drill.capsule import capsule_of, read

    if not source.is_file():
        return capsule_of(source)
    found = read(source)
    if not trust:
        why = "a capsule is a recipe of somebody else, which can run any program as you, and send what it reads here elsewhere"
        fix = f"read it (unzip -p {source} recipe.yaml); where you trust it, the same command with --trust"
        raise RecipeError(why, where=str(source), fix=fix)
    return found

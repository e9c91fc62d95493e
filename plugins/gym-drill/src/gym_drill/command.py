"""`gym drill`: the command."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from gym_core import GymError, Recipe, load_recipe
from gym_core.errors import FAILED
from gym_torch.console import say
from gym_torch.kinds import TorchBackend, part

if TYPE_CHECKING:
    from gym_drill.drill import Drill, Start


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--kills", default=20, show_default=True, type=click.IntRange(min=1), help="How often to kill the run.")
@click.option("--seed", default=0, show_default=True, help="Seed of the moments.")
@click.option("--steps", default=30, show_default=True, type=click.IntRange(min=4), help="Optimizer steps to train.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def drill(recipe: Path, overrides: tuple[str, ...], kills: int, seed: int, steps: int, as_json: bool) -> None:
    """Train, kill at random moments, resume, and compare with a run that nothing disturbed, bit for bit.

    Everything happens in a temporary directory. Exit code 1 when the two runs differ; the directory is then kept.

    Example: `gym drill recipe.yaml --kills 5`
    """
    if sys.platform == "win32":
        raise GymError("a process cannot be killed the hard way on Windows", fix="run the drill on Linux or macOS")
    report = carried_out(recipe, overrides, kills, seed, steps)
    click.echo(json.dumps(report) if as_json else _text(report))
    if report["difference"]:
        click.get_current_context().exit(FAILED)


def carried_out(
    recipe: Path, overrides: tuple[str, ...], kills: int, seed: int, steps: int, start: Start | None = None
) -> dict[str, Any]:
    """Carry out a drill in a temporary directory and return its report; the directory is kept where runs differ or fail.

    `start` starts each process of a run, by default in a new Python. Raises PluginError where a run has no weights here.
    """
    began = time.monotonic()
    loaded = load_recipe(recipe, overrides)
    part(loaded, TorchBackend)  # what has weights here, and checkpoints
    settings = shortened(loaded, overrides, steps)
    scratch = Path(tempfile.mkdtemp(prefix="gym-drill-"))
    said = ", ".join(f"train.{key}={value}" for key, value in settings.items())
    say(f"drill: {kills} kills, seed {seed}, in {scratch}; the recipe with {said}")
    finished = False
    try:
        work = prepare(loaded, settings, scratch, seed)
        work.start = start or work.start
        difference = work.run(kills)
        finished = not difference
    finally:
        if finished:
            shutil.rmtree(scratch)
        else:
            say(f"both runs and what they printed are kept in {scratch}")
    report: dict[str, Any] = {"verdict": "different" if difference else "identical", "difference": difference}
    return report | {"seed": seed, "train": settings, "seconds": round(time.monotonic() - began, 1), **work.report()}


def shortened(recipe: Recipe, overrides: tuple[str, ...], steps: int) -> dict[str, Any]:
    """Return the training keys that a drill sets: a short run, in which kills land between checkpoints.

    A key given on the command line stays as it was given.
    """
    data = recipe.canonical(everything=True).get("data", {})
    settings: dict[str, Any] = {
        "max_steps": min(steps, recipe.train.max_steps or steps),
        "save_every": max(1, steps // 8),
        "log_every": 1,
        "overwrite": False,
    }
    if data.get("validation"):
        settings["eval_every"] = max(1, steps // 5)
    given = {text.partition("=")[0].removeprefix("train.") for text in overrides}
    return {key: value for key, value in settings.items() if key not in given}


def prepare(recipe: Recipe, settings: dict[str, Any], scratch: Path, seed: int) -> Drill:
    """Write the recipe of the drill and return the drill, ready to run."""
    from gym_drill.drill import Drill  # where there is no SIGKILL it cannot be imported; and both import torch
    from gym_drill.run_phases import EXPORT, QUANTIZATION, Course

    canonical = recipe.canonical()
    canonical["train"] = canonical.get("train", {}) | settings
    canonical.pop("output", None)
    file = scratch / "recipe.yaml"
    file.write_text(yaml.safe_dump(canonical, sort_keys=False), encoding="utf-8")
    train = load_recipe(file).train
    from gym_torch.observer import steps_of

    total, every = train.max_steps or 0, train.eval_every
    evaluations = [step for step in range(1, total + 1) if every and step % steps_of(every, total) == 0]
    course = Course(total, frozenset([*evaluations, total] if "eval_every" in settings else []))
    late = [phase for phase, asked in ((QUANTIZATION, recipe.quantization), (EXPORT, recipe.export)) if asked]
    return Drill(file, scratch, course, late, random.Random(seed))


def _text(report: dict[str, Any]) -> str:
    phases = ", ".join(f"{count} {phase}" for phase, count in report["phases"].items())
    head = (
        f"{report['kills']} kills ({phases}) and {report['signals']} other signals over {report['runs']} run(s) "
        f"of {report['steps']} steps, in {report['seconds']:.0f} s"
    )
    if report["difference"]:
        return f"{head}\nDIFFERENT: {report['difference']}"
    return f"{head}\nidentical: weights, optimizer state and metrics, bit for bit"

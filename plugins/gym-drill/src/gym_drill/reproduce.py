"""Carries a recorded run out once more, in another folder, and compares the two."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gym_core import BusyError, GymError, PluginError, Recipe, RecipeError, load_recipe
from gym_core.execution import holds, opening
from gym_core.record import RunRecord
from gym_drill import training_process
from gym_drill.capsule import Capsule
from gym_drill.curve_comparison import compared
from gym_drill.environment_difference import Difference, differences
from gym_drill.reproduction_observer import ORIGINAL
from gym_torch.console import say
from gym_torch.kinds import TorchBackend, part

SAME, ROUNDED, DIFFERENT = "same bits", "same within rounding", "different"
#: entries of run.json that say how a run went; the others are what it decided, such as kernels, which a repetition keeps
_OUTCOME = {
    *("status", "error", "seconds", "resumed", "extended"),
    *("trained", "artifact", "exports", "best_checkpoint", "training", "memory"),
    *("data", "conditions", "machine", "code"),
}
_AFTERWARDS = ("export", "quantization")  #: sections whose work follows from what was trained
TOLERANCES = {"fp32": 1e-3}  #: relative; of the other precisions:
COARSE = 2e-2
CALLBACK = "gym-drill/reproduction"


@dataclass(frozen=True)
class Plan:
    """A reproduction that can begin."""

    capsule: Capsule
    recipe: Recipe
    file: Path  #: the recipe, written
    output: Path
    steps: int | None
    threads: int
    told: Sequence[Difference]


def planned(
    capsule: Capsule, overrides: Sequence[str], output: Path, steps: int | None = None, anyway: bool = False
) -> Plan:
    """Write what a reproduction begins with into `output`, or find it there.

    Raises RecipeError where a run cannot be reproduced or compared, BusyError where the folder holds something else, and what
    `load_recipe` raises.
    """
    record = capsule.record
    if record.get("status") != "finished" and not record.get("trained"):
        raise BusyError("is no finished run", where=capsule.name, fix="finish it with `gym train`")
    source = {name: value for name, value in capsule.recipe.items() if name not in _AFTERWARDS}
    processes = record.get("machine", {}).get("processes", 1)
    asked = load_recipe(source, overrides)
    _check_trains(asked)
    if processes > 1:
        asked = load_recipe(source, [*overrides, f"distributed.processes={processes}"])
    if str(asked.output) != str(source["output"]):
        raise RecipeError("where a reproduction goes is no key of its recipe", key="output", fix="--into FOLDER")
    last = max((line["step"] for line in capsule.metrics), default=0)
    first = min((line["step"] for line in capsule.metrics if line["step"]), default=0)
    if not first or (steps is not None and steps < first):
        fix = f"give --steps {first} or more" if first else "there is nothing to compare with"
        raise RecipeError(f"the first line of metrics.jsonl is that of step {first}", where=capsule.name, fix=fix)
    steps = None if steps is not None and steps >= last else steps
    recipe = load_recipe(_watched(asked.canonical(), steps, anyway) | {"output": str(output)})
    threads = record.get("machine", {}).get("threads")
    known = _threads(threads, processes)
    _begin(capsule, recipe, output, steps)
    file = output / ".reproduced.yaml"
    file.write_text(yaml.safe_dump(recipe.canonical(), sort_keys=False), encoding="utf-8")
    return Plan(capsule, recipe, file, output, steps, known, differences(record, recipe, known))


def _check_trains(recipe: Recipe) -> None:
    try:
        part(recipe, TorchBackend)
    except PluginError as error:
        name = next(item.name for item in recipe.resolved if item.path == ("algorithm",))
        why = (
            f"`{name}` trains no weights here: a model behind an endpoint answers, and what it answers no seed repeats"
        )
        raise RecipeError(
            why, key="algorithm", fix="`gym experiences diff` compares what two such runs learned"
        ) from error


def _watched(canonical: dict[str, Any], steps: int | None, anyway: bool) -> dict[str, Any]:
    """Return a recipe with the callback of a reproduction, also where others were left out, that goes on in its own folder."""
    callbacks = [*canonical.get("callbacks", ()), {"name": CALLBACK, "steps": steps, "anyway": anyway}]
    train = {name: value for name, value in canonical.get("train", {}).items() if name != "overwrite"}
    return canonical | {"callbacks": callbacks, "train": train}


def _threads(recorded: int | None, processes: int) -> int:
    """Return how many threads each process computes with: as many as then, where there are processors for them."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = max(1, here // processes)
    return min(recorded, most) if recorded else int(os.environ.get("OMP_NUM_THREADS", most))


def _begin(capsule: Capsule, recipe: Recipe, output: Path, steps: int | None) -> None:
    """Leave in the folder what a run leaves that was killed before its first step, with all that the original decided."""
    record = RunRecord(output / "run.json")
    before = record.read()
    failed = ORIGINAL in before and before["status"] in ("failed", "interrupted")
    if failed and not holds(output, [path for path in output.iterdir() if not path.name.startswith(".")]):
        record.path.unlink()  # it ended before its first step, such as for data that lie elsewhere
        before = {}
    if before:
        if (
            before.get(ORIGINAL, {}).get("capsule") == capsule.identity
            and before["fingerprint"] == recipe.fingerprint()
        ):
            done = before[ORIGINAL].get("steps")
            if before["status"] != "finished":
                record.update(**{ORIGINAL: {"steps": steps}})
            elif done is not None and (steps is None or steps > done):
                why, fix = (
                    f"holds the first {done} steps of it alone",
                    "choose another folder: --into; or remove this one",
                )
                raise BusyError(why, where=str(output), fix=fix)
            else:
                say(f"{output} is finished already, and is compared once more; remove it to carry the run out again")
            return
        fix = "choose another folder: --into"
        raise BusyError("holds a run, or the reproduction of another one", where=str(output), fix=fix)
    if not failed and output.exists() and any(output.iterdir()):
        raise BusyError("is not empty", where=str(output), fix="choose another folder: --into")
    output.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in capsule.record.items() if name not in _OUTCOME}
    fingerprint = capsule.record.get("data", {}).get("fingerprint")
    original = {"capsule": capsule.identity, "data": fingerprint, "conditions": capsule.record.get("conditions", {})}
    original |= {"steps": steps}
    record.update(**kept | opening(recipe, kept) | {"status": "interrupted", ORIGINAL: original})


def trained(plan: Plan) -> int:
    """Run the command line in a new Python with as many threads as then; return its exit status."""
    return training_process.train(plan.file, plan.threads)


def carried_out(plan: Plan, train: Callable[[Plan], int] = trained) -> float:
    """Have `train` carry the run out; return the seconds it took. Raises GymError where it fails, with its exit code."""
    began = time.monotonic()
    if code := train(plan):
        error = GymError("the run that was to be the same did not end, see above", where=str(plan.output))
        error.code = code if code > 0 else 128 - code
        raise error
    return time.monotonic() - began


def verdict(plan: Plan, tolerance: float | None) -> dict[str, Any]:
    """Return the report on a reproduction that ended."""
    from gym_torch.loop.callbacks.json_lines_base import read_lines
    from gym_torch.loop.callbacks.metrics_jsonl import FILE

    capsule = plan.capsule
    most = tolerance if tolerance is not None else TOLERANCES.get(str(capsule.record.get("precision")), COARSE)
    curves = compared(capsule.metrics, read_lines(plan.output / FILE), plan.steps)
    weights = _weights(plan)
    same = not curves.first and not (weights and weights["difference"])
    near = all(value <= most for value in curves.largest.values()) and (not weights or weights["relative"] <= most)
    return {
        "verdict": SAME if same else ROUNDED if near else DIFFERENT,
        "tolerance": most,
        "steps": plan.steps,
        "metrics": {"compared": curves.compared, "first": curves.judged or curves.first, "largest": curves.largest},
        "weights": weights,
        "environment": [each._asdict() for each in plan.told],
        "output": str(plan.output),
    }


def _weights(plan: Plan) -> dict[str, Any]:
    """Compare weights, as far as there are any to compare: of the end, or of a checkpoint at the last step."""
    from gym_drill.weight_comparison import compared, compared_with

    folder, trained = plan.capsule.folder, RunRecord(plan.output / "run.json").read()["trained"]
    here = plan.output / Path(trained["path"]).name
    if plan.steps is None:
        then = folder / Path(plan.capsule.record["trained"]["path"]).name if folder else None
        return (compared(then, here) if then else compared_with(plan.capsule.weights, here))._asdict()
    step = f"checkpoints/step-{plan.steps:08d}"
    if folder and (folder / step).is_dir() and (plan.output / step).is_dir():
        return compared(folder / step, plan.output / step)._asdict()
    return {}


def text(report: Mapping[str, Any]) -> str:
    """Return the report for people; its last line is the verdict."""
    metrics, weights = report["metrics"], report["weights"]
    lines = []
    if first := metrics["first"]:
        lines.append(
            f"first difference: step {first['step']}, {first['metric']} {first['then']} then, {first['here']} here"
        )
        largest = ", ".join(f"{name} {value:.2g}" for name, value in metrics["largest"].items())
        lines.append(f"largest difference, relative: {largest}")
    if weights.get("difference"):
        where = " at some places of each" if weights["sampled"] else ""
        lines.append(
            f"weights: {weights['difference']} differs first; largest difference{where} {weights['largest']:.2g}, "
            f"all of them relative to the weights {weights['relative']:.2g}"
        )
    some = f"the first {report['steps']} steps" if report["steps"] else "the run"
    what = f"{metrics['compared']} lines of metrics" + (" and the weights" if weights else ", no weights to compare")
    within = f" (every loss, gradient norm and the weights to {report['tolerance']:g}, relative)"
    said = report["verdict"] + (within if report["verdict"] == ROUNDED else "")
    lines.append(f"{said}: {some}, {what}")
    return "\n".join(lines)

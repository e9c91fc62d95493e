"""Executes a recipe in its output directory: calls the hooks in order, and keeps `run.json` up to date."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import click

from gym_core.artifact import Artifact
from gym_core.blame import owner
from gym_core.errors import RAISED, RECORDED, BusyError, GymError, Interrupted, PluginError, RecipeError
from gym_core.files import expanded
from gym_core.hooks import manager_for
from gym_core.outputlock import OutputLock
from gym_core.ranks import Ranks
from gym_core.recipe import CHANGEABLE, Recipe
from gym_core.record import RunRecord, Unwritten, environment, explained
from gym_core.run import Outcome, Run
from gym_core.sections import dotted

_ONE = threading.RLock()
ENDED = ("run.json", "divergence.json", "divergence.txt")  #: files that say how and why a run ended


def execute(recipe: Recipe) -> Outcome:
    """Execute a recipe: load the model, train, quantize, export. The same recipe again continues, or returns what is finished.

    Of several processes the main one does everything; the others load and train with it, and write nothing.

    Raises BusyError where the folder or the process has another run, RecipeError for no `Recipe`, and what the phases raise.
    """
    if not isinstance(recipe, Recipe):
        given = type(recipe).__name__
        raise RecipeError(f"a Recipe is executed, and no {given}", fix="execute(load_recipe(...)), of a file or a dict")
    output = expanded(recipe.output)
    hook = manager_for(recipe.hooks).hook
    ranks: Ranks = recipe.distributed.build(output=output) if recipe.distributed else Ranks()
    if not isinstance(ranks, Ranks):
        raise PluginError(f"{recipe.distributed!r:.50} built no Ranks", key="distributed", fix="return a Ranks")
    with _alone(output), ranks, OutputLock(output) if ranks.main else nullcontext():
        record = RunRecord(output / "run.json") if ranks.main else Unwritten(output / "run.json")
        before = ranks.agree(lambda: _opened(output, record, recipe))
        if before.get("status") == "finished":
            artifact, exports = Artifact.from_json(before["artifact"], output), map(Path, before.get("exports", ()))
            return Outcome(output, artifact, tuple(exports), repeated=True, quiet=not ranks.main)
        run = Run(recipe, output, record, resuming=bool(before), ranks=ranks)
        started = time.monotonic() - before.get("seconds", 0.0)  # as if it had run in one process
        try:
            with ranks:
                outcome = _phases(run, hook)
        except BaseException as error:
            if not isinstance(error, GymError) and (whose := owner(error, recipe.resolved)):
                error.add_note(RAISED + whose)
            status = "interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"
            with suppress(OSError):  # a full disk must not hide what happened; the run goes on all the same
                record.update(status=status, seconds=round(time.monotonic() - started, 3), error=explained(error))
                error.add_note(RECORDED)
            raise
        made = {"artifact": outcome.artifact.to_json(), "exports": outcome.exports}
        record.update(status="finished", seconds=round(time.monotonic() - started, 3), error=None, **made)
        return outcome


@contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Keep other threads from executing a recipe: seeds, and which kernels were chosen, are those of a whole process."""
    if not _ONE.acquire(blocking=False):
        fix = "wait until it ends, or run `gym train` in a process of its own"
        raise BusyError("another thread of this process carries out a run", where=str(output), fix=fix)
    try:
        yield
    finally:
        _ONE.release()


def _phases(run: Run, hook: Any) -> Outcome:
    model = hook.load_model(run=run)
    trainer = hook.build_trainer(run=run, model=model)
    artifact = trainer.train()
    if not run.ranks.main:
        return Outcome(run.output, artifact, quiet=True)
    del model, trainer  # what comes now needs the memory
    run.record.update(trained=artifact.to_json())  # whatever is refused from here on, this can be exported
    if run.recipe.quantization:
        artifact = hook.quantize(run=run, artifact=artifact, into=run.output / "quantized")
    names = [item.name for item in run.recipe.resolved if item.path[0] == "export" and len(item.path) == 2]
    folders = [f"{name}-{names[:at].count(name) + 1}" * (name in names[:at]) or name for at, name in enumerate(names)]
    exports = tuple(
        hook.export(run=run, artifact=artifact, exporter=exporter, into=run.output / "export" / folder)
        for folder, exporter in zip(folders, run.recipe.export, strict=True)
    )
    return Outcome(run.output, artifact, exports)


def _opened(output: Path, record: RunRecord, recipe: Recipe) -> dict[str, Any]:
    """Return what an earlier process recorded; unless that run is finished, check the recipe and record that it continues."""
    before = dict(_earlier(output, record, recipe))
    if before.get("status") != "finished":
        recipe.check()
        record.update(**opening(recipe, before))
    return before


def _earlier(output: Path, record: RunRecord, recipe: Recipe) -> Mapping[str, Any]:
    """Return what an earlier process recorded of the same run; empty for a new one. Never touches files of another run."""
    before = record.read()
    others = [path for path in output.iterdir() if not path.name.startswith(".")]  # the lock, and what is half written
    if not before and not others:
        return {}
    old, finished = before.get("settings", {}), before.get("status") == "finished"
    longer = recipe.longer(old)
    same = before.get("fingerprint") == recipe.fingerprint() and (not finished or longer or old == recipe.settings())
    if same and not (recipe.train.overwrite and finished):
        if finished and longer:
            _set_aside(output, [path for path in others if path.name in {"export", "quantized"}])  # of the shorter run
            return {**before, "status": "extended"}
        return before
    if before and not finished and not holds(output, others):
        record.path.unlink()  # it ended before its first step, and there is nothing to lose
        return {}
    if recipe.train.overwrite:
        _set_aside(output, others)
        return {}
    fix = "choose another `output:`, or set `train: {overwrite: true}` to set the old one aside"
    why = _difference(before, recipe) if before else "the output directory is not empty and holds no run"
    raise BusyError(why, where=str(output), key="output", fix=fix)


def _difference(before: Mapping[str, Any], recipe: Recipe) -> str:
    old = before.get("settings", {}) | _packages(before.get("components", ()))
    new = recipe.settings() | _packages([item._asdict() for item in recipe.resolved])
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    shown = ", ".join(f"{key} {old.get(key)!r} -> {new.get(key)!r}" for key in changed[:3])
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return f"holds a run of another recipe: {shown or 'another version of a plugin'}{more}"


def _packages(components: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the package of each component that can change a number, under keys that are no settings."""
    some = (item for item in components if item["path"][0] not in CHANGEABLE)
    return {f"package of {dotted(tuple(item['path']))}": f"{item['dist']} {item['version']}" for item in some}


def holds(output: Path, others: Sequence[Path]) -> bool:
    """Whether a run left a complete, non-empty file other than those that say why it ended."""
    files = (file for path in others for file in [path, *path.rglob("*")] if file.is_file() and file.name not in ENDED)
    return any(file.stat().st_size for file in files if "/." not in f"/{file.relative_to(output).as_posix()}")


def _set_aside(output: Path, others: list[Path]) -> None:
    """Move what lies in the output directory into one beside it. Raises BusyError where the command itself runs there."""
    place, number = output.resolve(), 1
    if others and Path.cwd().is_relative_to(place):
        why = "holds the folder that this command runs in, which cannot be set aside"
        raise BusyError(why, where=str(output), key="output", fix="choose another `output:`")
    while (aside := place.with_name(f"{place.name}.before-{number}")).exists():
        number += 1
    for path in others:
        aside.mkdir(exist_ok=True)
        path.rename(aside / path.name)
    if others:
        click.echo(f"note: set aside in {aside}: {', '.join(sorted(path.name for path in others))}", err=True)


def opening(recipe: Recipe, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `run.json` for a run that begins, or continues from the record `before`."""
    return {
        "status": "running",
        "trained": None,
        "fingerprint": recipe.fingerprint(),
        "recipe": recipe.canonical(),
        "settings": recipe.settings(),
        "components": [item._asdict() | {"path": list(item.path)} for item in recipe.resolved],
        "environment": environment(),
        "started": before.get("started") or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "resumed": before.get("resumed", -1) + 1,
    }

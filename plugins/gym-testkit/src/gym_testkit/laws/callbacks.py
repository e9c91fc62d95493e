"""Laws of callbacks: they watch, and what they watch does not change."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from gym_core import PluginError, Run, load_recipe
from gym_core.discovery import entries
from gym_core.record import RunRecord
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_torch.observer import Progress

STEPS = 4
LOSSES = (3.0, 2.0, 2.0, 2.0, 2.0, 2.0)  #: of a run that soon learns no more

laws = laws_of("callbacks", "callback")


@laws("watching changes no number")
def changes_nothing(brought: Brought, bench: Bench) -> None:
    """A run with it takes the steps of a run without it, to the bit, as far as it goes."""
    recipe = _recipe(brought, bench)
    watched, alone = bench.run(recipe, "watched"), bench.run({**recipe, "callbacks": []}, "alone")
    steps = watched.series("loss")
    assert steps and steps == alone.series("loss")[: len(steps)]
    if len(steps) == STEPS:  # it did not ask for an end
        ours, theirs = (fingerprint(run.outcome.artifact.path, ".safetensors") for run in (watched, alone))
        assert ours == theirs


@laws("what it remembers survives a restart")
def remembers(brought: Brought, bench: Bench) -> None:
    """Its state lies in a checkpoint as plain data, and a process that takes it up remembers the same."""
    recipe = _recipe(brought, bench)
    output = bench.run(recipe).outcome.output
    last = max((output / "checkpoints").glob("step-*"))
    states = json.loads((last / "state.json").read_text(encoding="utf-8"))["observers"]
    again = brought.sample().build(
        run=Run(load_recipe(recipe), bench.path("again"), RunRecord(bench.root / "again.json"))
    )
    state = states.get(type(again).__name__, {})
    again.load_state_dict(state)
    assert again.state_dict() == state


@laws("one that goes on does what one left alone does")
def goes_on(brought: Brought, bench: Bench) -> None:
    """Stopped after a checkpoint and built again with its state, it asks for the same, keeps the same and writes the same.

    Of what it keeps, plain values that change while it watches count, and that are the same whenever it is left alone.
    """
    recipe = _recipe(brought, bench)
    lines = bench.run({**recipe, "callbacks": []}, "plain").metrics
    logged, evaluated = (
        next(line for line in lines if any(key.startswith("eval_") for key in line) is held) for held in (False, True)
    )

    def watched(name: str, stops: Sequence[int]) -> dict[str, Any]:
        output = bench.path(name)
        output.mkdir()
        run = Run(load_recipe({**recipe, "output": str(output)}), output, RunRecord(output / "run.json"))
        progress, state = Progress(len(LOSSES)), None
        first: dict[str, Any] = {}
        for stop in (*stops, len(LOSSES)):
            observer = brought.sample().build(run=run)
            if state is not None:
                observer.load_state_dict(state)
            observer.started(progress)
            first = first or _plain(observer)
            while progress.step < stop and not progress.stop:
                progress.step += 1
                loss = LOSSES[progress.step - 1]
                changed = {"step": progress.step, "loss": loss, "eval_loss": loss}
                observer.stepped(progress)
                observer.logged(progress, {key: changed.get(key, value) for key, value in logged.items()})
                observer.evaluated(progress, {key: changed.get(key, value) for key, value in evaluated.items()})
                observer.saving(progress)
            state = json.loads(json.dumps(observer.state_dict()))
            kept = {name: value for name, value in _plain(observer).items() if value != first.get(name)}
            observer.closed()
            progress = replace(progress)
        files = {f"the file {name}": found for name, found in fingerprint(run.output).items()}
        return {"it asks for an end": (progress.step, progress.stop), "state_dict": state, **kept, **files}

    alone, again = watched("alone", ()), watched("again", ())
    told = {key: value for key, value in alone.items() if key in again and again[key] == value}
    for stop in range(1, len(LOSSES)):
        resumed = watched(f"resumed-{stop}", [stop])
        differ = [key for key, value in told.items() if key not in resumed or resumed[key] != value]
        assert not differ, f"stopped after step {stop} of {len(LOSSES)} and resumed, it differs: {', '.join(differ)}"


def _plain(observer: object) -> dict[str, Any]:
    """Return the attributes that hold plain data, as they are now."""
    found = {}
    for name, value in vars(observer).items():
        with suppress(TypeError, ValueError):
            found[name] = json.dumps(value, sort_keys=True, default=_listed)
    return found


def _listed(value: object) -> list[Any]:
    if isinstance(value, deque | set | frozenset):
        return list(value)
    raise TypeError


def _recipe(brought: Brought, bench: Bench) -> dict[str, Any]:
    """Return a small run that is watched."""
    try:
        brought.sample().check()
    except PluginError as error:
        pytest.skip(f"needs another package: {error.problems[0]}")
    assert "sft" in {entry.name for entry in entries("algorithms")}, "nothing to watch: pip install gym-sft"
    recipe = bench.recipe("sft", max_steps=STEPS, save_every=2, eval_every=1)
    recipe["data"] = {"sources": [recipe["data"]], "validation": 4}
    return recipe | {"callbacks": [{"name": brought.name, **brought.options()}]}

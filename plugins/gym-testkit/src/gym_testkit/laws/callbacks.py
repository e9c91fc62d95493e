"""Laws of callbacks: they watch, and what they watch does not change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym_core import PluginError, Run, load_recipe
from gym_core.discovery import entries
from gym_core.record import RunRecord
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

STEPS = 4

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

"""Runs with adapters that find their first values: they begin once, and go on to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import gym_torch.begin
import gym_torch.loop
from gym_core import execute, load_recipe
from gym_testkit.bench import Bench
from gym_torch.loop import reseed

KINDS = ("dora", "pissa", "lora_ga", "eva", "loftq", "adalora")


@pytest.fixture
def small(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class Crash(Exception):
    """Stands for whatever may end a process."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_to_the_bit_and_begins_but_once(small: Bench, monkeypatch: Any, kind: str) -> None:
    adapter = {"name": kind, "rank": 4} | ({"target_rank": 2} if kind == "adalora" else {})
    recipe = small.recipe("sft", max_steps=6, save_every=2) | {"adapter": adapter}
    whole = small.run(recipe, "whole")

    def crash(seed: int, step: int, number: int) -> None:
        reseed(seed, step, number)
        if step == 3:
            raise Crash

    again = recipe | {"output": str(small.path("crashed"))}
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(gym_torch.loop, "reseed", crash)
        execute(load_recipe(again))

    def never(*_: Any) -> Any:
        raise AssertionError("the first values were found a second time")

    monkeypatch.setattr(gym_torch.begin, "_first", never)
    resumed = execute(load_recipe(again)).output
    for file in sorted((whole.outcome.output / "model").glob("*.safetensors")):
        left, right = load_file(resumed / "model" / file.name), load_file(file)
        assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    losses = [
        json.loads(line)["loss"] for line in (resumed / "metrics.jsonl").read_text().splitlines() if "loss" in line
    ]
    assert losses == whole.series("loss")
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", ["lora_ga", "eva", "adalora"])
def test_how_a_step_is_cut_does_not_matter(small: Bench, kind: str) -> None:
    """One batch of eight, or four of two: it begins with the same, and a penalty counts once."""
    adapter = {"name": kind, "rank": 4} | ({"target_rank": 2, "orthogonality": 5.0} if kind == "adalora" else {})
    runs = [
        small.run(small.recipe("sft", max_steps=3, learning_rate=1e-3, **cut) | {"adapter": adapter}, f"run-{number}")
        for number, cut in enumerate([{"batch_size": 8}, {"batch_size": 2, "accumulate": 4}])
    ]
    for figure in ("loss", "grad_norm"):
        assert runs[0].series(figure) == pytest.approx(runs[1].series(figure), rel=2e-3)

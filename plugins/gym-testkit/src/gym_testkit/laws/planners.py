"""Laws of planners: an answer to each question and to no other, the same each time, and a prediction that grows with the work."""

from __future__ import annotations

import random
from typing import Any, cast

import torch

from gym_core import Train, load_recipe
from gym_core.discovery import entries
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_torch.config import torch_algorithm
from gym_torch.planners import AUTO, KEYS, PlannedRun, Planner, Plans

laws = laws_of("planners", "planner")


def _plans(brought: Brought) -> Plans:
    return cast(Plans, cast(Planner, brought.sample()).build())


def _run(bench: Bench, **train: Any) -> PlannedRun:
    """Return a run of the tiny model with these training options."""
    algorithm = next((entry.name for entry in entries("algorithms") if entry.name == "sft"), None)
    assert algorithm, "no algorithm to plan for: pip install gym-sft"
    recipe = bench.recipe(algorithm)
    options = {key: value for key, value in recipe["train"].items() if key != "batch_size"} | train
    loaded, path = load_recipe(recipe | {"train": options}), bench.model()
    assert loaded.data is not None
    data = loaded.data.build(tokenizer=path, rows=torch_algorithm(loaded).rows, seed=loaded.train.seed)
    return PlannedRun(loaded, path, "fp32", torch.device("cpu"), data.train)


@laws("settles what is asked and nothing else")
def settles(brought: Brought, bench: Bench) -> None:
    """For each key that is `auto` alone, a value that `train` takes; without one, nothing."""
    plans = _plans(brought)
    for key in KEYS:
        found = dict(plans.settle(_run(bench, **{key: AUTO})))
        assert set(found) == {key}, f"asked for {key}, it settles {sorted(found)}"
        assert getattr(Train(**found), key) != AUTO, f"{key} stays open"
    assert not plans.settle(_run(bench, batch_size=2)), "asked for nothing, it settles something"


@laws("settles the same again, and draws no random number")
def the_same(brought: Brought, bench: Bench) -> None:
    """Two planners agree about one run, and what is random after them is what it was before."""
    run = _run(bench, batch_tokens=AUTO)
    before = random.getstate(), torch.get_rng_state()
    one, other = (dict(_plans(brought).settle(run)) for _ in range(2))
    assert one == other, f"{one} becomes {other}"
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1]), "it draws numbers"


@laws("predicts bytes that grow with the batch")
def predicts(brought: Brought, bench: Bench) -> None:
    """A step takes at least the weights, the same in a second prediction, and more with sixteen samples than with one."""
    plans, weights = _plans(brought), (bench.model() / "model.safetensors").stat().st_size
    small, again, large = (plans.predicted_bytes(_run(bench, batch_size=size)) for size in (1, 1, 16))
    assert small == again, f"{small} bytes become {again}"
    assert weights < small < large, f"weights of {weights} bytes, 1 sample: {small}, 16 samples: {large}"

"""Laws of strategies: a process alone works as without one, and several take the steps of one."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from gym_core.component import load_object
from gym_core.discovery import entries
from gym_core.ranks import Ranks
from gym_testkit import team
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_torch.kinds import TorchStrategy

STEPS = 3

laws = laws_of("strategies", "strategy")


def _recipe(brought: Brought, bench: Bench) -> dict[str, Any]:
    """Return a small run that the strategy spreads, four batches a step."""
    assert "sft" in {entry.name for entry in entries("algorithms")}, "nothing to spread: pip install gym-sft"
    recipe = bench.recipe("sft", batch_size=2, accumulate=4, max_steps=STEPS)
    return recipe | {"distributed": {"name": brought.name, **brought.options()}}


@laws("says whether it cuts parameters, and how several processes hold a model")
def declares(brought: Brought, bench: Bench) -> None:
    """`shards` is declared, and `spread` names what can be called."""
    strategy = cast(TorchStrategy, brought.sample())
    assert isinstance(strategy.shards(), bool)
    assert strategy.spread, f"{brought.cls.__name__} does not declare `spread`: several processes cannot use it"
    assert callable(load_object(strategy.spread))


@laws("a process alone works as without it")
def alone(brought: Brought, bench: Bench) -> None:
    """It is the main process, agrees with itself, and takes the steps of a run of no strategy, to the bit."""
    ranks = brought.sample().build(output=bench.path("ranks"))
    assert isinstance(ranks, Ranks) and ranks.main
    with ranks, ranks:
        assert ranks.agree(lambda: {"answer": 42}) == {"answer": 42}
    recipe = _recipe(brought, bench)
    plain = {key: value for key, value in recipe.items() if key != "distributed"}
    assert bench.run(recipe, "with").series("loss") == bench.run(plain, "without").series("loss")


@laws("two processes take the steps of one")
def together(brought: Brought, bench: Bench) -> None:
    """They meet as torchrun has them meet, both end well, and each step has the loss that one process finds, to rounding."""
    recipe = _recipe(brought, bench)
    path, output = bench.path("recipe.json"), bench.path("apart")
    path.write_text(json.dumps(recipe | {"output": str(output)}), encoding="utf-8")
    members = team.start(2, str(path))
    codes = members.codes(within=120)
    assert codes == [0, 0], members.errors()
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    apart = [line["loss"] for line in lines if "loss" in line]
    assert len(apart) == STEPS and apart == pytest.approx(bench.run(recipe, "alone").series("loss"), rel=1e-4)

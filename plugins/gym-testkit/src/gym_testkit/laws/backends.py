"""Laws of backends: the weights of the files, the same each time, and errors that name what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch

from gym_core import GymError, Run, load_recipe
from gym_core.component import load_object
from gym_core.discovery import entries
from gym_core.record import RunRecord
from gym_core.sections import SLOTS
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_torch.kinds import TorchBackend

laws = laws_of("backends", "backend")


def _loaded(brought: Brought, bench: Bench, path: Path) -> Any:
    """Load the model of a directory as a run would."""
    algorithm = next((entry.name for entry in entries("algorithms") if entry.name == "sft"), None)
    assert algorithm, "no algorithm to load a model for: pip install gym-sft"
    recipe = bench.recipe(algorithm) | {"model": {SLOTS["model"].selector: brought.name, "path": str(path)}}
    run = Run(load_recipe(recipe), bench.root, RunRecord(bench.root / "run.json"))
    assert run.recipe.model is not None
    return run.recipe.model.build(run=run)


@laws("loads the weights of the files, the same each time")
def loads(brought: Brought, bench: Bench) -> None:
    """`model` of what it returns is a torch module; two directories are two models, and the files stay what they are."""
    one, other = bench.model(0), bench.model(1)
    before = fingerprint(one)
    first, again, second = (_loaded(brought, bench, path).model.state_dict() for path in (one, one, other))
    assert first and all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], second[name]) for name in first), "another directory is the same model"
    assert fingerprint(one) == before


@laws("what is not there is an error of the recipe's key")
def absent(brought: Brought, bench: Bench) -> None:
    """A directory that does not exist, and one without weights, end in an error that names `model`."""
    empty = bench.path("empty")
    empty.mkdir()
    for path in (bench.root / "nowhere", empty):
        try:
            _loaded(brought, bench, path)
        except GymError as refused:
            named = [problem for problem in refused.problems if problem.key.startswith("model") or problem.where]
            assert named, f"{refused} names neither key nor place"
        else:
            raise AssertionError(f"it loads a model from {path.name}")


def _declares_empty(brought: Brought) -> bool:
    return issubclass(brought.cls, TorchBackend) and bool(brought.cls.empty)


@laws("its model without weights is that of a run", _declares_empty)
def empty(brought: Brought, bench: Bench) -> None:
    """What `empty` names builds the tensors of `build`, by name, shape and dtype, without data, in the same layout."""
    loaded = _loaded(brought, bench, bench.model())
    options = cast(Any, brought.cls)(path=str(bench.model()))
    build = load_object(options.empty)
    made = build(options, precision="fp32", samples=None, device=torch.device("cpu"))
    found, expected = (
        {name: (tensor.shape, tensor.dtype) for name, tensor in each.model.state_dict().items()}
        for each in (made, loaded)
    )
    assert found == expected, f"{sorted(found.items() ^ expected.items())[:3]} differ"
    assert all(tensor.device.type == "meta" for tensor in made.model.state_dict().values()), "it holds data"
    assert (made.path, made.precision, made.layout) == (loaded.path, loaded.precision, loaded.layout)

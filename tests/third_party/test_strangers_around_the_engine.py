"""A backend, a data component and a strategy of strangers: each trains by what docs/kinds.md promises, and by nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gym_core import GymError, execute, load_recipe
from gym_data.kinds import Data
from gym_testkit import team
from gym_testkit.bench import Bench
from gym_testkit.metadata_files import write_distribution
from gym_torch.kinds import TorchBackend
from gym_torch.model.loading import LoadedModel

STEPS = {"max_steps": 2, "batch_size": 4, "learning_rate": 0.01}


def load(options, precision="fp32", layout=None, **_):
    """Load a model as the stranger does, whether it is the one that trains or a further one."""
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32)
    return LoadedModel(model, options.path, options.folder, precision, **({"layout": layout} if layout else {}))


class Closed(TorchBackend):
    """Loads the model that trains, and says nothing of others."""

    folder: str
    """Where it lies."""

    @property
    def path(self):
        return Path(self.folder)

    def build(self, run):
        return load(self)


class Open(Closed):
    """Says how further models are loaded."""

    further = f"{__name__}:load"

    def other(self, path):
        return self.model_copy(update={"folder": path})


class Sample(NamedTuple):
    """Tokens that count up."""

    id: str
    tokens: np.ndarray
    trained: np.ndarray


class Samples(list):
    """Samples with the lengths that the engine plans by."""

    @property
    def lengths(self):
        return np.array([len(each.tokens) for each in self])


class Prepared(NamedTuple):
    """What the data component builds."""

    train: Samples
    validation: Samples | None
    fingerprint: str
    report: dict


class Counting(Data):
    """Counting sequences, from no file and through no tokenizer."""

    count: int = 8
    """How many."""

    def build(self, **_):
        whole = [np.arange(3, 9 + number % 4, dtype=np.int32) for number in range(self.count)]
        samples = [Sample(f"count {n}", each, np.ones(len(each), dtype=bool)) for n, each in enumerate(whole)]
        return Prepared(Samples(samples[2:]), Samples(samples[:2]), f"counting {self.count}", {})


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def run(bench, recipe, name, **components):
    """Carry out a recipe with components of a stranger in their places."""
    loaded = load_recipe(recipe | {"output": str(bench.path(name))})
    return bench.finished(execute(replace(loaded, **components)))


def test_a_backend_trains_and_loads_a_reference_where_it_says_how(bench):
    plain = bench.recipe("sft", **STEPS)
    model = str(bench.model())
    ours = run(bench, plain | {"model": {"path": model, "attention": "sdpa"}}, "ours")
    assert run(bench, plain, "theirs", model=Open(folder=model)).series("loss") == ours.series("loss")
    compared = bench.recipe({"name": "dpo", "precompute_ref_log_probs": False}, "preference", **STEPS)
    assert run(bench, compared, "dpo", model=Open(folder=model)).series("kl")[1] > 0


def test_a_backend_that_loads_one_model_alone_is_refused_where_a_second_is_needed(bench):
    compared = bench.recipe({"name": "dpo", "precompute_ref_log_probs": False}, "preference", **STEPS)
    with pytest.raises(GymError, match="Closed does not declare `further`") as caught:
        run(bench, compared, "whole", model=Closed(folder=str(bench.model())))
    assert caught.value.problems[0].key == "model"
    light = compared | {"adapter": "lora"}
    assert run(bench, light, "light", model=Closed(folder=str(bench.model()))).metrics, "it is its own reference there"


def test_a_data_component_trains_is_evaluated_and_goes_on(bench):
    recipe = bench.recipe("sft", **STEPS | {"eval_every": 1, "max_steps": 4, "save_every": 2}) | {
        "scheduler": "constant"
    }
    whole = run(bench, recipe, "whole", data=Counting())
    assert len(whole.series("eval_loss")) == 4 and whole.series("loss")[-1] < whole.series("loss")[0]
    shorter = recipe | {"train": recipe["train"] | {"max_steps": 2}, "output": str(bench.path("again"))}
    execute(replace(load_recipe(shorter), data=Counting()))
    longer = shorter | {"train": recipe["train"]}
    again = bench.finished(execute(replace(load_recipe(longer), data=Counting())))
    assert again.series("loss") == whole.series("loss")


STRATEGIES = '''
import os
from typing import ClassVar

from gym_core.ranks import Ranks
from gym_torch.kinds import TorchStrategy


class Silent(TorchStrategy):
    """Meets, and does not say how a model lies over processes."""

    target: ClassVar[str] = "gym_torch.distributed.ranks:TorchrunRanks"
    timeout: float = 60.0
    """Seconds to wait for each other."""

    def build(self, **context):
        return super().build(**context) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Ranks()

    def shards(self):
        return False


class Pair(Silent):
    """Says it."""

    spread: ClassVar[str] = "acme_spread:Marked"
'''
SPREAD = """
from pathlib import Path
from gym_torch.distributed.ddp import Replicated

class Marked(Replicated):
    def wrap(self, policy):
        Path(f"{__file__}.{self.accelerator.process_index}").touch()
        return super().wrap(policy)
"""


@pytest.fixture
def site(tmp_path):
    """Return a folder with a package of strategies, as an installer leaves it."""
    folder = tmp_path / "site"
    points = {"gym.strategies": {"silent": "acme_strategies:Silent", "pair": "acme_strategies:Pair"}}
    write_distribution(folder, "gym-acme", points, {"acme_strategies": STRATEGIES, "acme_spread": SPREAD})
    return folder


@pytest.mark.parametrize(("strategy", "code"), [("pair", 0), ("silent", 3)])
def test_a_strategy_spreads_a_run_as_it_says_and_is_refused_where_it_does_not(bench, site, strategy, code):
    recipe = bench.recipe("sft", **STEPS)
    path, output = bench.root / "recipe.json", bench.path("apart")
    path.write_text(json.dumps(recipe | {"distributed": strategy, "output": str(output)}))
    members = team.start(2, str(path), PYTHONPATH=str(site), OMP_NUM_THREADS="1")
    codes = members.codes(within=90)
    assert codes == [code, code], members.errors()
    if code:
        assert "Silent does not declare `spread`" in members.errors()
        assert "precision:" not in members.errors(), "the model was loaded first"
        return
    assert sorted(file.name for file in site.glob("acme_spread.py.*")) == ["acme_spread.py.0", "acme_spread.py.1"]
    apart = [json.loads(line)["loss"] for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert apart == pytest.approx(bench.run(recipe, "alone").series("loss"), rel=1e-4)

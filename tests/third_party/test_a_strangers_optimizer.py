"""An optimizer of a stranger, with state of its own and other weights to use than those that train, by `docs/kinds.md` alone."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from gym_core import GymError, execute, load_recipe
from gym_optim.kinds import Optimizer

SHARE = 0.5  #: of the average that a step replaces


class Descent(torch.optim.Optimizer):
    """Gradient descent, and the running average of where it was."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.sub_(weight.grad, alpha=group["lr"])
                    self.state[weight].setdefault("average", weight.clone()).lerp_(weight, SHARE)

    @contextmanager
    def averaged(self):
        held = {weight: weight.detach().clone() for weight in self.state}
        with torch.no_grad():
            for weight in held:
                weight.copy_(self.state[weight]["average"])
        yield
        with torch.no_grad():
            for weight, before in held.items():
                weight.copy_(before)


class Silent(Optimizer):
    """Says nothing of itself."""

    def build(self, parameters, learning_rate):
        return Descent(parameters, learning_rate)


class Averaged(Silent):
    """Says what docs/kinds.md asks for."""

    def elementwise(self):
        return True

    def keeps_gradients(self):
        return True

    def updates_in_backward(self):
        return False

    def averages(self):
        return True

    def evaluation_weights(self, optimizer):
        return optimizer.averaged()


@pytest.fixture
def train(tmp_path):
    def train(name, optimizer, **train):
        recipe = {"model": "tiny", "data": {"sources": ["tiny-tasks"], "cutoff": 64}, "algorithm": "sft"}
        options = {"batch_size": 2, "learning_rate": 0.1, "plot": False, "log_every": 1, **train}
        recipe |= {"train": options, "scheduler": "constant", "output": str(tmp_path / name)}
        execute(replace(load_recipe(recipe), optimizer=optimizer))
        output = tmp_path / name
        last = max(output.glob("checkpoints/step-*"))
        return [load_file(folder / "model.safetensors") for folder in (output / "model", last)]

    return train


def test_it_trains_goes_on_from_its_state_and_leaves_the_weights_to_use(train):
    made, trained = train("whole", Averaged(), max_steps=4)
    again = train("again", Averaged(), max_steps=2), train("again", Averaged(), max_steps=4)
    assert all(torch.equal(made[name], again[1][0][name]) for name in made)
    assert all(torch.equal(trained[name], again[1][1][name]) for name in trained)
    moved = [name for name in made if not torch.equal(trained[name], again[0][1][name])]
    assert moved and all(not torch.equal(made[name], trained[name]) for name in moved), "the average was not taken"


def test_one_that_does_not_say_how_it_works_is_refused_by_name(train):
    with pytest.raises(GymError, match="Silent does not declare `updates_in_backward`") as caught:
        train("silent", Silent(), max_steps=1)
    assert "write `def updates_in_backward(self) -> bool" in str(caught.value)

"""Layers that take turns: what rests does not move, holds no gradient and has no state."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from optim_bench import random, state_bytes
from torch import Tensor, nn

from gym_core import GymError
from gym_optim import LISA, BAdam
from gym_optim.config import LISA as LisaOptions
from gym_optim.config import BAdam as BAdamOptions


def stack() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
    return nn.ModuleDict({"embed": nn.Linear(4, 4), "layers": layers}).double()


def backward(model: nn.Module, seed: int) -> None:
    hidden = model["embed"](random(5, 4, seed=seed))
    for layer in model["layers"]:
        hidden = layer(hidden).tanh()
    hidden.square().mean().backward()


def moved(model: nn.Module, optimizer: Any, seed: int) -> set[str]:
    """Take a step and return which parts of the model it moved."""
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    backward(model, seed)
    optimizer.step()
    optimizer.zero_grad()
    changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    return {name.removesuffix(".weight").removesuffix(".bias") for name in changed}


@pytest.mark.parametrize(
    ("order", "start", "turns"),
    [
        ("ascending", None, ["layers.0", "layers.1", "layers.2", "embed", "layers.0"]),
        ("descending", None, ["embed", "layers.2", "layers.1", "layers.0", "embed"]),
        ("ascending", 2, ["layers.2", "embed", "layers.0", "layers.1", "layers.2"]),
        ("fixed", 1, ["layers.1"] * 5),
    ],
)
def test_badam_moves_one_block_at_a_time(order: Any, start: int | None, turns: list[str]) -> None:
    model = stack()
    optimizer = BAdam(model.named_parameters(), lr=0.01, interval=2, order=order, start=start)
    assert [moved(model, optimizer, seed) for seed in range(10)] == [{turn} for turn in turns for _ in range(2)]
    assert state_bytes(optimizer) == 2 * 8 * 20


def test_badam_takes_every_block_once_a_round_in_random_order() -> None:
    model = stack()
    optimizer = BAdam(model.named_parameters(), lr=0.01, interval=1, order="random")
    turns = [moved(model, optimizer, seed).pop() for seed in range(8)]
    assert sorted(turns[:4]) == sorted(turns[4:]) == ["embed", "layers.0", "layers.1", "layers.2"]


def test_layers_take_turns_by_their_numbers_in_whatever_groups_they_come() -> None:
    """A model with attention in its last layer alone has that layer first among the projections to queries."""
    model = stack()
    named = dict(model.named_parameters())
    last = ["layers.2.weight"]
    groups = [[name for name in named if (name in last) == first] for first in (True, False)]
    optimizer = BAdam([{"params": [(name, named[name]) for name in group]} for group in groups], lr=0.01, interval=1)
    turns = [moved(model, optimizer, seed).pop() for seed in range(4)]
    assert turns == ["layers.0", "layers.1", "layers.2", "embed"]
    ten = {"params": [(f"layers.{number}.weight", nn.Parameter(torch.ones(2, 2))) for number in (10, 9)]}
    assert BAdam([ten]).working() == {"layers.9"}


def test_badam_of_one_block_is_adamw() -> None:
    ours, theirs = stack(), stack()
    fixed = BAdam(ours.named_parameters(), lr=0.01, order="fixed", weight_decay=0.1)
    adam = torch.optim.AdamW(theirs["layers"][0].parameters(), lr=0.01, weight_decay=0.1, fused=True)
    for seed in range(6):
        moved(ours, fixed, seed)
        moved(theirs, adam, seed)
        theirs.zero_grad()
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_badam_begins_anew_at_each_turn() -> None:
    """The second turn of a block is that of an AdamW which has seen nothing of the first."""
    ours, theirs = stack(), stack()
    cycle = BAdam(ours.named_parameters(), lr=0.01, interval=2)
    for turn, block in enumerate([*theirs["layers"], theirs["embed"], *theirs["layers"]]):
        adam = torch.optim.AdamW(block.parameters(), lr=0.01, weight_decay=0.0, fused=True)
        for seed in (2 * turn, 2 * turn + 1):
            moved(ours, cycle, seed)
            moved(theirs, adam, seed)
            theirs.zero_grad()
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_lisa_of_all_layers_is_adamw() -> None:
    ours, theirs = stack(), stack()
    lisa = LISA(ours.named_parameters(), lr=0.01, layers=3, interval=2, weight_decay=0.1)
    adam = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.1, fused=True)
    for seed in range(6):
        moved(ours, lisa, seed)
        moved(theirs, adam, seed)
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_lisa_moves_what_stands_outside_and_a_few_layers() -> None:
    model = stack()
    optimizer = LISA(model.named_parameters(), lr=0.01, layers=1, interval=2, seed=3)
    sets = [moved(model, optimizer, seed) for seed in range(24)]
    assert all("embed" in each and len(each) == 2 for each in sets)
    assert all(sets[number] == sets[number + 1] for number in range(0, 24, 2))
    assert len(set().union(*sets)) == 4, "in time every layer has its turn"
    assert state_bytes(optimizer) == 2 * 2 * 8 * 20


def test_a_gradient_that_is_not_used_goes_at_once() -> None:
    model = stack()
    LISA(model.named_parameters(), lr=0.01, layers=1, interval=2)
    backward(model, 0)
    backward(model, 1)  # as with accumulation
    held = {name.rpartition(".")[0] for name, weight in model.named_parameters() if weight.grad is not None}
    assert len(held) == 2 and "embed" in held


@pytest.mark.parametrize("kind", [BAdam, LISA])
def test_a_state_goes_on_in_the_middle_of_a_turn(kind: Any) -> None:
    one, options = stack(), {"lr": 0.01, "interval": 3}
    first = kind(one.named_parameters(), **options)
    for seed in range(4):
        moved(one, first, seed)
    other = deepcopy(stack())
    other.load_state_dict(one.state_dict())
    second = kind(other.named_parameters(), **options)
    second.load_state_dict(deepcopy(first.state_dict()))
    for seed in range(4, 12):
        assert moved(one, first, seed) == moved(other, second, seed)
    pairs: list[tuple[Tensor, Tensor]] = list(zip(one.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(LISA, LisaOptions(layers=1, interval=1)), (LISA, LisaOptions(interval=1)), (BAdam, BAdamOptions(interval=1))],
)
def test_the_gradients_that_stay_are_those_declared(kind: Any, options: Any) -> None:
    """In fp32, of which a declaration speaks; one of the turns holds the most."""
    model = stack().float()
    optimizer = options.build(parameters=list(model.named_parameters()), learning_rate=0.01)
    held = []
    for _ in range(8):
        hidden = model["embed"](random(5, 4).float())
        for layer in model["layers"]:
            hidden = layer(hidden).tanh()
        hidden.square().mean().backward()
        held.append(sum(weight.grad.nbytes for weight in model.parameters() if weight.grad is not None))
        optimizer.step()
        optimizer.zero_grad()
    shapes = [(name, tuple(weight.shape)) for name, weight in model.named_parameters()]
    assert isinstance(optimizer, kind) and max(held) == options.held_gradients([{"params": shapes}])


def test_a_block_to_begin_with_must_be_there() -> None:
    with pytest.raises(GymError, match="there is no block 4: they are 4"):
        BAdam(stack().named_parameters(), start=4)


def test_names_are_needed() -> None:
    with pytest.raises(GymError, match="names of parameters"):
        LISA(stack().parameters())

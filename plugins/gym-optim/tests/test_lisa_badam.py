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
from gym_optim.parameter_roles import block_of
from gym_testkit.architectures import build


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


@pytest.mark.proves("badam")
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
    optimizer = BAdam(
        model.named_parameters(), lr=0.01, switch_interval=2, switch_mode=order, start_block=start, include_lm_head=True
    )
    assert [moved(model, optimizer, seed) for seed in range(10)] == [{turn} for turn in turns for _ in range(2)]
    assert state_bytes(optimizer) == 2 * 8 * 20


def turns_of(model: Any, **options: Any) -> list[set[str]]:
    """Return what moves at each turn of a round, by the last name of what is outside the layers."""
    optimizer = BAdam(model, lr=0.01, switch_interval=1, **options)
    found = []
    for seed in range(len(optimizer.order_of_blocks(optimizer.layers()))):
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        tokens = torch.arange(16).view(2, 8) * (seed + 3) % 50
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
        found.append({block_of(name) or name for name in changed})
    return found


@pytest.mark.proves("badam")
def test_badam_leaves_embeddings_and_head_alone_unless_they_are_asked_for() -> None:
    layers = [{"model.layers.0"}, {"model.layers.1"}]
    table, rest = {"model.embed_tokens.weight"}, {"lm_head.weight", "model.norm.weight"}
    assert turns_of(build("qwen3")) == layers
    assert turns_of(build("qwen3"), switch_mode="descending") == layers[::-1]
    assert turns_of(build("qwen3"), include_embedding=True) == [table, *layers]
    assert turns_of(build("qwen3"), include_lm_head=True) == [*layers, rest]
    assert turns_of(build("qwen3"), include_embedding=True, include_lm_head=True) == [table, *layers, rest]


def test_badam_declares_one_layer_of_a_model_of_8b() -> None:
    """Of 128,256 tokens and 32 layers, 4,096 wide: embeddings and head have five times the numbers of a layer."""
    width, inner, kept = 4096, 14336, 1024
    matrices = [(width, width), (kept, width), (kept, width), (width, width), *[(inner, width)] * 2, (width, inner)]
    layer = [(f"model.layers.0.{number}.weight", shape) for number, shape in enumerate(matrices)]
    table = [("model.embed_tokens.weight", (128_256, width))]
    groups = [{"params": layer, "role": "matrix"}, {"params": table, "role": "embedding"}]
    groups += [{"params": [("lm_head.weight", (128_256, width))], "role": "head"}]
    assert BAdamOptions().declared_bytes(groups) == 8 * sum(a * b for a, b in matrices) < 1.75e9
    assert BAdamOptions(include_embedding=True).declared_bytes(groups) == 8 * 128_256 * width


def test_badam_refuses_matrices_that_would_never_train() -> None:
    layers = [("layers.0.weight", nn.Parameter(torch.ones(2, 2))), ("beside.weight", nn.Parameter(torch.ones(1, 2)))]
    with pytest.raises(GymError, match=r"beside\.weight stands outside the layers") as caught:
        BAdam([{"params": layers, "role": "matrix"}])
    assert caught.value.problems[0].key == "optimizer.include_lm_head"
    BAdam([{"params": layers, "role": "matrix"}], include_lm_head=True)
    with pytest.raises(GymError, match="finds no embedding"):
        BAdam(layers, include_embedding=True)
    with pytest.raises(GymError, match="finds no layer"):
        BAdam(layers[1:])


def test_badam_takes_every_block_once_a_round_in_random_order() -> None:
    model = stack()
    optimizer = BAdam(model.named_parameters(), lr=0.01, switch_interval=1, switch_mode="random", include_lm_head=True)
    turns = [moved(model, optimizer, seed).pop() for seed in range(8)]
    assert sorted(turns[:4]) == sorted(turns[4:]) == ["embed", "layers.0", "layers.1", "layers.2"]


def test_layers_take_turns_by_their_numbers_in_whatever_groups_they_come() -> None:
    """A model with attention in its last layer alone has that layer first among the projections to queries."""
    model = stack()
    named = dict(model.named_parameters())
    last = ["layers.2.weight"]
    groups = [[name for name in named if (name in last) == first] for first in (True, False)]
    options = {"lr": 0.01, "switch_interval": 1, "include_lm_head": True}
    optimizer = BAdam([{"params": [(name, named[name]) for name in group]} for group in groups], **options)
    turns = [moved(model, optimizer, seed).pop() for seed in range(4)]
    assert turns == ["layers.0", "layers.1", "layers.2", "embed"]
    ten = {"params": [(f"layers.{number}.weight", nn.Parameter(torch.ones(2, 2))) for number in (10, 9)]}
    assert BAdam([ten]).active_blocks() == {"layers.9"}


@pytest.mark.proves("badam")
def test_badam_of_one_block_is_adamw() -> None:
    ours, theirs = stack(), stack()
    fixed = BAdam(ours.named_parameters(), lr=0.01, switch_mode="fixed", weight_decay=0.1)
    adam = torch.optim.AdamW(theirs["layers"][0].parameters(), lr=0.01, weight_decay=0.1, fused=True)
    for seed in range(6):
        moved(ours, fixed, seed)
        moved(theirs, adam, seed)
        theirs.zero_grad()
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.proves("badam")
def test_badam_begins_anew_at_each_turn() -> None:
    """The second turn of a block is that of an AdamW which has seen nothing of the first."""
    ours, theirs = stack(), stack()
    cycle = BAdam(ours.named_parameters(), lr=0.01, switch_interval=2, include_lm_head=True)
    for turn, block in enumerate([*theirs["layers"], theirs["embed"], *theirs["layers"]]):
        adam = torch.optim.AdamW(block.parameters(), lr=0.01, weight_decay=0.0, fused=True)
        for seed in (2 * turn, 2 * turn + 1):
            moved(ours, cycle, seed)
            moved(theirs, adam, seed)
            theirs.zero_grad()
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.proves("lisa")
def test_lisa_of_all_layers_is_adamw() -> None:
    ours, theirs = stack(), stack()
    lisa = LISA(ours.named_parameters(), lr=0.01, activated_layers=3, interval_steps=2, weight_decay=0.1)
    adam = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.1, fused=True)
    for seed in range(6):
        moved(ours, lisa, seed)
        moved(theirs, adam, seed)
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.proves("lisa")
def test_lisa_moves_what_stands_outside_and_a_few_layers() -> None:
    model = stack()
    optimizer = LISA(model.named_parameters(), lr=0.01, activated_layers=1, interval_steps=2, seed=3)
    sets = [moved(model, optimizer, seed) for seed in range(24)]
    assert all("embed" in each and len(each) == 2 for each in sets)
    assert all(sets[number] == sets[number + 1] for number in range(0, 24, 2))
    assert len(set().union(*sets)) == 4, "in time every layer has its turn"
    assert state_bytes(optimizer) == 2 * 2 * 8 * 20


@pytest.mark.proves("lisa")
def test_a_gradient_that_is_not_used_goes_at_once() -> None:
    model = stack()
    optimizer = LISA(model.named_parameters(), lr=0.01, activated_layers=1, interval_steps=2)
    backward(model, 0)
    backward(model, 1)  # as with accumulation
    held = {name.rpartition(".")[0] for name, weight in model.named_parameters() if weight.grad is not None}
    assert held == {block or "embed" for block in optimizer.active_blocks()} and len(held) == 2


@pytest.mark.proves("badam", "lisa")
@pytest.mark.parametrize("kind", [BAdam, LISA])
def test_a_state_goes_on_in_the_middle_of_a_turn(kind: Any) -> None:
    one, options = stack(), {"lr": 0.01, kind.interval: 3}
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


@pytest.mark.proves("badam", "lisa")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (LISA, LisaOptions(activated_layers=1, interval_steps=1)),
        (LISA, LisaOptions(interval_steps=1)),
        (BAdam, BAdamOptions(switch_interval=1)),
    ],
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
    assert isinstance(optimizer, kind) and max(held) == options.gradient_bytes([{"params": shapes}])


def test_a_block_to_begin_with_must_be_there() -> None:
    with pytest.raises(GymError, match="there is no block 4: they are 4"):
        BAdam(stack().named_parameters(), start_block=4, include_lm_head=True)
    with pytest.raises(GymError, match="there is no block 3: they are 3"):
        BAdam(stack().named_parameters(), start_block=3)


def test_names_are_needed() -> None:
    with pytest.raises(GymError, match="names of parameters"):
        LISA(stack().parameters())

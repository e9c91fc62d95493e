"""Every optimizer on the tiny model: bytes of state, exact checkpoints, refusals. Nothing here knows which they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from optim_bench import backward, components, state_bytes, tiny
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from gym_optim.kinds import Optimizer
from gym_torch.distributed.optimizer_state import put, take
from gym_torch.model.parameter_groups import groups_of

SMALL = {
    "rank": 4,
    **dict.fromkeys(("update_proj_gap", "precondition_frequency", "interval_steps", "switch_interval"), 2),
    "min_8bit_size": 256,
    "activated_layers": 1,
}  #: options that make each do all it can do in a few steps


def small(kind: type[Optimizer]) -> Optimizer:
    return kind(**{name: value for name, value in SMALL.items() if name in kind.model_fields})


def model_for(kind: type[Optimizer]) -> PreTrainedModel:
    torch.manual_seed(0)
    model = tiny()
    if not kind.general:
        model.requires_grad_(False)
        model = inject_adapter_in_model(LoraConfig(target_modules=["q_proj", "o_proj"], r=2), model)
    return model


def built(kind: type[Optimizer], model: PreTrainedModel) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = small(kind).build(parameters=groups_of(model), learning_rate=1e-3)
    return optimizer


def train(model: PreTrainedModel, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(("name", "kind"), components().items())
def test_state_takes_what_is_declared(name: str, kind: type[Optimizer]) -> None:
    model = model_for(kind)
    shapes = [
        {**group, "params": [(key, tuple(weight.shape)) for key, weight in group["params"]]}
        for group in groups_of(model)
    ]
    optimizer = built(kind, model)
    train(model, optimizer, range(3))
    declared = small(kind).declared_bytes(shapes)
    assert state_bytes(optimizer) == pytest.approx(declared, rel=0.01)


@pytest.mark.parametrize(("name", "kind"), components().items())
def test_a_checkpoint_goes_on_bit_for_bit(name: str, kind: type[Optimizer], tmp_path: Path) -> None:
    model = model_for(kind)
    optimizer = built(kind, model)
    train(model, optimizer, range(3))
    tensors, plain = take(optimizer, model, lambda tensor: tensor.detach().clone().contiguous())
    save_file(tensors, tmp_path / "optimizer.safetensors")
    tree: Any = json.loads(json.dumps(plain))
    other = model_for(kind)
    other.load_state_dict({key: value.clone() for key, value in model.state_dict().items()})
    successor = built(kind, other)
    put(successor, other, load_file(tmp_path / "optimizer.safetensors"), tree, lambda tensor, parameter: tensor)
    train(model, optimizer, range(3, 8))
    train(other, successor, range(3, 8))
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(left, right)


INSIDE = {name: kind for name, kind in components().items() if "in_backward" in kind.model_fields}


@pytest.mark.parametrize(("name", "kind"), INSIDE.items())
def test_in_the_backward_pass_it_takes_the_same_steps(name: str, kind: type[Optimizer]) -> None:
    plain, inside = model_for(kind), model_for(kind)
    train(plain, built(kind, plain), range(4))
    options = small(kind).model_dump() | {"in_backward": True}
    train(inside, kind(**options).build(parameters=groups_of(inside), learning_rate=1e-3), range(4))
    for left, right in zip(plain.parameters(), inside.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "kind"), components().items())
def test_it_learns(name: str, kind: type[Optimizer]) -> None:
    """One batch again and again, at the best of a few rates: every optimizer brings its loss down."""

    def last(rate: float) -> float:
        model = model_for(kind)
        optimizer: Any = small(kind).build(parameters=groups_of(model), learning_rate=rate)
        tokens = torch.arange(32).view(2, 16) * 7 % 256
        for _ in range(12):
            loss = model(input_ids=tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return float(model(input_ids=tokens, labels=tokens).loss.detach())

    before = model_for(kind)
    tokens = torch.arange(32).view(2, 16) * 7 % 256
    first = float(before(input_ids=tokens, labels=tokens).loss.detach())
    assert min(last(rate) for rate in (1e-1, 1e-2)) < 0.9 * first

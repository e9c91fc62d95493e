"""Under autocast a weight is cast once for a whole generation, and what is generated is the same, bit for bit."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from gym_torch_decoding import PROMPTS
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gym_testkit.architectures import build
from gym_torch.generation import generator
from gym_torch.generation.cache_support import CacheSupport
from gym_torch.generation.cast_once import cast_once
from gym_torch.generation.generator import Generator
from gym_torch.kernels import few_row_products


class Casts(TorchDispatchMode):
    """Counts how often weights are cast."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        linear = (part for part in model.modules() if isinstance(part, nn.Linear))
        self.counts = {part.weight.data_ptr(): 0 for part in linear}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and args[0].data_ptr() in self.counts:
            self.counts[args[0].data_ptr()] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("trains", [False, True])
def test_a_weight_is_cast_once(trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama").requires_grad_(trains)
    monkeypatch.setattr(few_row_products.CHOICES, "always", False)  # else kernels multiply by the copies
    with Casts(model) as seen, torch.autocast("cpu", torch.bfloat16):
        made = Generator(model, None, support=CacheSupport(True)).generate(PROMPTS, 8, temperature=1.0, stop_ids=())
    assert seen.counts and set(seen.counts.values()) == {1}
    assert not any("forward" in vars(part) for part in model.modules() if isinstance(part, nn.Linear))
    monkeypatch.setattr(generator, "cast_once", lambda model: nullcontext())
    with torch.autocast("cpu", torch.bfloat16):
        assert (
            Generator(model, None, support=CacheSupport(True)).generate(PROMPTS, 8, temperature=1.0, stop_ids=())
            == made
        )


def test_other_layers_are_left_alone() -> None:
    def changed(model: Any) -> bool:
        with torch.autocast("cpu", torch.bfloat16), cast_once(model):
            return any("forward" in vars(part) for part in model.modules())

    frozen = build("llama").requires_grad_(False)
    assert changed(frozen)
    assert changed(build("llama").requires_grad_(True))
    assert not changed(build("llama").requires_grad_(False).bfloat16())
    frozen.compile()
    assert not changed(frozen)


def test_nothing_stays_behind_where_a_weight_cannot_be_cast() -> None:
    model = build("llama").requires_grad_(False)
    model.lm_head.to("meta")
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError), cast_once(model):
        pass
    assert not any("forward" in vars(part) for part in model.modules())


def test_a_part_that_is_not_rounded_stays_so() -> None:
    model = build("llama").requires_grad_(False)
    layer, given = model.model.layers[0].mlp.up_proj, torch.ones(2, 32)
    expected = layer(given)
    with torch.autocast("cpu", torch.bfloat16), cast_once(model), torch.autocast("cpu", enabled=False):
        assert torch.equal(layer(given), expected)

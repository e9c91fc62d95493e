"""A few layers tell what all need, whatever kinds there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gym_torch_bench import NextToken
from gym_torch_plans import CPU, EXPERTS, QWEN, WINDOWS, recipe_of

import gym_plan.skeleton
from gym_plan.memory import predict
from gym_plan.repeated_layers import Repeat, repeat_of
from gym_plan.skeleton import skeleton
from gym_plan.synthetic_examples import planned
from gym_torch.kernels.module_recognition import turned_dtype


def in_full(folder: Path, config: dict[str, Any], adapter: Any, **options: Any) -> tuple[Any, ...]:
    recipe = recipe_of(folder, config, adapter, **options)
    built = skeleton(recipe, "fp32", CPU)
    counts = built.parameters, sorted(built.trained), built.weights, built.gradients
    return built.repeat, (*counts, predict(recipe, built, planned(NextToken(None), [128, 96])))


@pytest.mark.parametrize(
    ("config", "adapter", "checkpointing", "repeat"),
    [
        (QWEN, "full", False, Repeat(0, 1, 5)),
        (WINDOWS, "full", False, Repeat(0, 2, 2)),
        (EXPERTS, {"name": "lora", "target_modules": "self_attn"}, True, Repeat(2, 1, 4)),
        (EXPERTS, {"name": "lora", "target_modules": "layers.3.self_attn.q_proj"}, False, Repeat(4, 1, 2)),
        (QWEN, {"name": "freeze", "trainable_layers": 2}, False, Repeat(0, 1, 3)),
        (QWEN, {"name": "freeze", "trainable_layers": -1}, True, Repeat(1, 1, 4)),
        (QWEN | {"num_hidden_layers": 10}, "full", 2, Repeat(0, 2, 3)),
        (EXPERTS | {"num_hidden_layers": 14}, {"name": "lora", "target_modules": "self_attn"}, 3, Repeat(2, 3, 2)),
        (QWEN, "lora", "selective", Repeat(0, 1, 5)),
    ],
)
def test_few_layers_tell_of_many(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    adapter: Any,
    checkpointing: bool | int | str,
    repeat: Repeat,
) -> None:
    found, few = in_full(tmp_path, config, adapter, gradient_checkpointing=checkpointing)
    assert found == repeat
    monkeypatch.setattr(gym_plan.skeleton, "repeat_of", lambda layers, every: Repeat())
    assert in_full(tmp_path, config, adapter, gradient_checkpointing=checkpointing) == (Repeat(), few)


def test_what_a_process_asks_once_is_in_no_plan(tmp_path: Path) -> None:
    adapter = {"name": "lora", "target_modules": "self_attn"}
    turned_dtype.cache_clear()
    first, second = (in_full(tmp_path, EXPERTS, adapter, gradient_checkpointing=True) for _ in range(2))
    assert first == second


def test_layers_that_share_weights_are_not_left_out() -> None:
    layer = torch.nn.Linear(2, 2)
    assert repeat_of(torch.nn.ModuleList([layer] * 8)) == Repeat()
    assert repeat_of(torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(8))) == Repeat(0, 1, 6)

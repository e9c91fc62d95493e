"""Layers that compute again: the same numbers under every policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gym_torch_bench import NextToken, furthest, make_run, samples, train, weights
from gym_torch_plans import EXPERTS, QWEN, recipe_of
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_adapters import LoRA
from gym_torch.attention.segment_attention import NAME
from gym_torch.batch import packed
from gym_torch.memory import gradient_checkpointing
from gym_torch.memory.gradient_checkpointing import recomputable, recompute_layers
from gym_torch.model.adapted import adapt
from gym_torch.model.log_probs import declared_head
from gym_torch.policy import Policy

EVERY: list[Any] = [False, True, 2, 3, "selective", "tiled", "offload"]


def real(folder: Path) -> PreTrainedModel:
    """Return the model of a folder, which attends as in a run."""
    shape = AutoConfig.from_pretrained(folder)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape, dtype=torch.float32, attn_implementation=NAME)
    return model


def gradients(folder: Path, config: dict[str, Any], policy: Any, adapter: str, precision: str) -> tuple[Tensor, ...]:
    """Return loss and gradients of a batch, with dropout in the adapter."""
    recipe = recipe_of(folder, config, {"name": "lora", "dropout": 0.1} if adapter == "lora" else adapter)
    torch.manual_seed(0)
    model = real(folder)
    adapt(model, recipe)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    recompute_layers(model.train(), policy)
    torch.manual_seed(1)
    loss, _ = NextToken(None).loss(
        Policy(model, precision, declared_head(model)), packed([samples(6)[number] for number in range(6)])
    )
    loss.backward()
    return loss.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)


@pytest.mark.parametrize(
    ("config", "adapter", "precision"),
    [
        (QWEN, "full", "fp32"),
        (QWEN, "lora", "fp32"),
        (EXPERTS, "full", "fp32"),
        (QWEN, "full", "bf16"),
        (QWEN, "full", "fp16"),
    ],
)
def test_loss_and_gradients_are_the_same_under_every_policy(
    tmp_path: Path, config: dict[str, Any], adapter: str, precision: str
) -> None:
    plain, *others = (gradients(tmp_path, config, policy, adapter, precision) for policy in EVERY)
    assert len(plain) > 10 and all(part.abs().sum() > 0 for part in plain)
    for other in others:
        assert all(torch.equal(*pair) for pair in zip(plain, other, strict=True))


@pytest.mark.parametrize("operation", gradient_checkpointing.ATTENTION, ids=str)
def test_attention_that_draws_numbers_is_computed_again(operation: Any) -> None:
    """Kept, it would leave the numbers that it drew to the dropout behind it, which is computed again: on a GPU alone."""
    names = [argument.name for argument in torch._C._get_schema(operation.name(), "").arguments]
    before = [None] * names.index("dropout_p")
    for how, expected in (((), "MUST_SAVE"), ((0.0, True), "MUST_SAVE"), ((0.1, True), "PREFER_RECOMPUTE")):
        assert gradient_checkpointing.what_is_kept(None, operation, *before, *how).name == expected
    assert gradient_checkpointing.what_is_kept(None, operation, *before, dropout_p=0.1).name == "PREFER_RECOMPUTE"


def test_every_so_many_layers_compute_again() -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**QWEN))
    marks = {}
    for policy in EVERY:
        recompute_layers(model, policy)
        marks[policy] = [layer.gradient_checkpointing for layer in recomputable(model)]
        for layer in recomputable(model):
            layer.gradient_checkpointing = False
    assert marks == {
        False: [False] * 7,
        True: [True] * 7,
        2: [True, False] * 3 + [True],
        3: [True, False, False] * 2 + [True],
        **dict.fromkeys(["selective", "tiled", "offload"], [True] * 7),
    }


@pytest.mark.parametrize("policy", ["selective", 2, "offload"])
def test_a_run_is_the_same_run(model_path: Path, tmp_path: Path, policy: Any) -> None:
    for name, asked in (("plain", False), ("other", policy)):
        train(make_run(model_path, tmp_path / name, max_steps=3, gradient_checkpointing=asked))
    assert furthest(weights(tmp_path / "plain"), weights(tmp_path / "other")) < 1e-6


def test_an_adapter_on_frozen_layers_computes_again(tmp_path: Path, model_path: Path) -> None:
    sections = {"adapter": LoRA(rank=2)}
    run = make_run(model_path, tmp_path / "run", sections=sections, gradient_checkpointing="selective", max_steps=2)
    assert train(run).kind == "adapter"

"""Layers that compute again: the same numbers under every policy, and the memory that a plan says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gym_torch_bench import NextToken, furthest, make_run, samples, train, weights
from gym_torch_plans import CPU, EXPERTS, QWEN, recipe_of
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import gym_torch.plan.auto
from gym_adapters import LoRA
from gym_core import GymError, RecipeError
from gym_torch.batch import packed
from gym_torch.model.adapted import adapt
from gym_torch.model.attention import NAME
from gym_torch.model.gradient_checkpointing import recomputable, recompute_layers
from gym_torch.model.log_probs import declared_head
from gym_torch.plan.auto import POLICIES, lightest, settle
from gym_torch.plan.batch import planned
from gym_torch.plan.memory import Prediction, predict
from gym_torch.plan.plan import plan
from gym_torch.plan.skeleton import Skeleton, skeleton
from gym_torch.plan.trace import Trace
from gym_torch.policy import Policy

EVERY: list[Any] = [False, True, 2, 3, "selective"]
LENGTHS = [128, 96]


def real(folder: Path) -> PreTrainedModel:
    """Return the model of a folder, which attends as in a run."""
    shape = AutoConfig.from_pretrained(folder)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape, dtype=torch.float32, attn_implementation=NAME)
    return model


def gradients(folder: Path, config: dict[str, Any], policy: Any, adapter: str, bf16: bool) -> tuple[Tensor, ...]:
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
        Policy(model, bf16, declared_head(model)), packed([samples(6)[number] for number in range(6)])
    )
    loss.backward()
    return loss.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)


@pytest.mark.parametrize(
    ("config", "adapter", "bf16"),
    [(QWEN, "full", False), (QWEN, "lora", False), (EXPERTS, "full", False), (QWEN, "full", True)],
)
def test_loss_and_gradients_are_the_same_under_every_policy(
    tmp_path: Path, config: dict[str, Any], adapter: str, bf16: bool
) -> None:
    plain, *others = (gradients(tmp_path, config, policy, adapter, bf16) for policy in EVERY)
    assert len(plain) > 10 and all(part.abs().sum() > 0 for part in plain)
    for other in others:
        assert all(torch.equal(*pair) for pair in zip(plain, other, strict=True))


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
        "selective": [True] * 7,
    }


def predicted(folder: Path, policy: Any, **config: Any) -> Prediction:
    recipe = recipe_of(folder, QWEN | config, gradient_checkpointing=policy)
    return predict(recipe, skeleton(recipe, folder, "fp32", CPU), planned(NextToken(None), LENGTHS))


def test_the_plan_counts_what_is_kept_and_what_is_computed_again(tmp_path: Path) -> None:
    found = {policy: predicted(tmp_path, policy) for policy in EVERY}
    kept = {policy: each.memory.activations for policy, each in found.items()}
    work = {policy: each.flops for policy, each in found.items()}
    assert kept[True] < kept[2] < kept[3] < kept[False]
    assert kept[True] < kept["selective"] < 0.75 * kept[False]
    assert work["selective"] == work[False] < work[3] < work[2] < work[True]
    again = work[True] - work[False]
    assert work[2] - work[False] == pytest.approx(again * 4 / 7, rel=1e-6)


@pytest.mark.parametrize("policy", EVERY)
def test_what_is_planned_is_what_is_live(tmp_path: Path, policy: Any) -> None:
    """The same pass over real tensors, taken down operation by operation."""
    planned_peak = predicted(tmp_path, policy).memory
    model = real(tmp_path).train()
    recompute_layers(model, policy)
    subject, trace = Policy(model, head=declared_head(model)), Trace()
    batch = planned(NextToken(None), LENGTHS)
    trace.ignore(
        [*subject.parameters(), *subject.buffers(), *(v for v in vars(batch).values() if isinstance(v, Tensor))]
    )
    with trace:
        loss, _ = NextToken(None).loss(subject, batch)
        loss.backward()
    expected = planned_peak.peak - planned_peak.weights - planned_peak.optimizer
    assert trace.timeline().peak <= expected < 1.15 * trace.timeline().peak


@pytest.mark.parametrize("policy", ["selective", 2])
def test_a_run_is_the_same_run(model_path: Path, tmp_path: Path, policy: Any) -> None:
    for name, asked in (("plain", False), ("other", policy)):
        train(make_run(model_path, tmp_path / name, max_steps=3, gradient_checkpointing=asked))
    assert furthest(weights(tmp_path / "plain"), weights(tmp_path / "other")) < 1e-6


def test_auto_takes_the_fastest_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {policy: predicted(tmp_path, policy).memory.peak for policy in POLICIES}
    recipe = recipe_of(tmp_path, QWEN, gradient_checkpointing="auto")

    def chosen(room: int) -> Any:
        monkeypatch.setattr(gym_torch.plan.auto, "room", lambda device: room)
        return lightest(recipe, tmp_path, "fp32", CPU, lambda built: planned(NextToken(None), LENGTHS))

    assert [chosen(peaks[policy]) for policy in POLICIES] == list(POLICIES)
    with pytest.raises(GymError, match="whatever is computed again") as caught:
        chosen(peaks[True] - 1)
    assert caught.value.problems[0].key == "train.gradient_checkpointing"


def test_a_run_and_a_plan_settle_auto_alike(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(model_path, tmp_path / "run", gradient_checkpointing="auto", max_steps=2)
    sizes: list[int] = []

    def peak(recipe: Any, built: Skeleton, batch: Any) -> Any:
        found = predict(recipe, built, batch)
        sizes.append(found.memory.peak)
        return found

    monkeypatch.setattr(gym_torch.plan.auto, "predict", peak)
    monkeypatch.setattr(gym_torch.plan.auto, "room", lambda device: 10**12)
    assert settle(run, model_path, "fp32", CPU, samples(9)).gradient_checkpointing is False
    assert run.record.read()["gradient_checkpointing"] is False
    monkeypatch.setattr(gym_torch.plan.auto, "room", lambda device: 0)
    assert settle(run, model_path, "fp32", CPU, samples(9)).gradient_checkpointing is False, "as recorded"
    other = make_run(model_path, tmp_path / "other", gradient_checkpointing="auto", max_steps=2)
    monkeypatch.setattr(gym_torch.plan.auto, "room", lambda device: sizes[0] - 1)
    assert settle(other, model_path, "fp32", CPU, samples(9)).gradient_checkpointing == "selective"
    train(other)
    recipe = recipe_of(tmp_path, QWEN, gradient_checkpointing="auto", batch_size=2)
    monkeypatch.setattr(gym_torch.plan.auto, "room", lambda device: 10**12)
    assert plan(recipe).gradient_checkpointing is False
    with pytest.raises(RecipeError, match="either the batch or what is computed again"):
        plan(recipe_of(tmp_path, QWEN, gradient_checkpointing="auto", batch_tokens="auto"))


def test_an_adapter_on_frozen_layers_computes_again(tmp_path: Path, model_path: Path) -> None:
    sections = {"adapter": LoRA(rank=2)}
    run = make_run(model_path, tmp_path / "run", sections=sections, gradient_checkpointing="selective", max_steps=2)
    assert train(run).kind == "adapter"

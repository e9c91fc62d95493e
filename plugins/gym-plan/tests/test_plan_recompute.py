"""Layers that compute again: the memory that a plan says, and what `auto` becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_torch_bench import NextToken, make_run, samples, train
from gym_torch_plans import CPU, QWEN, recipe_of
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_core import GymError, RecipeError, load_recipe
from gym_data.examples import Example
from gym_plan.auto import POLICIES, Fitting, lightest
from gym_plan.memory import Prediction, predict
from gym_plan.plan import plan
from gym_plan.skeleton import skeleton
from gym_plan.synthetic_examples import planned
from gym_plan.trace import Trace
from gym_torch.attention.fused_attention import CHOICES
from gym_torch.attention.segment_attention import NAME
from gym_torch.batch import Batch, packed
from gym_torch.memory import tiling
from gym_torch.memory.gradient_checkpointing import recompute_layers
from gym_torch.model.log_probs import declared_head
from gym_torch.planners import PlannedRun, settle
from gym_torch.policy import Policy

EVERY: list[Any] = [False, True, 2, 3, "selective", "tiled", "offload"]
LENGTHS = [128, 96]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `tiled` cut rows that are this short."""
    monkeypatch.setattr(tiling.tile, "__defaults__", (16,))


def real(folder: Path) -> PreTrainedModel:
    """Return the model of a folder, which attends as in a run."""
    shape = AutoConfig.from_pretrained(folder)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape, dtype=torch.float32, attn_implementation=NAME)
    return model


def predicted(folder: Path, policy: Any, **config: Any) -> Prediction:
    recipe = recipe_of(folder, QWEN | config, gradient_checkpointing=policy)
    return predict(recipe, skeleton(recipe, "fp32", CPU), planned(NextToken(None), LENGTHS))


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Prediction]:
    """Return what is predicted of seven layers under a policy, asked once of each."""
    folder = tmp_path_factory.mktemp("seven")
    return cache(lambda policy: predicted(folder, policy))


def test_the_plan_counts_what_is_kept_and_what_is_computed_again(seven: Callable[[Any], Prediction]) -> None:
    found = {policy: seven(policy) for policy in EVERY}
    kept = {policy: each.memory.activations for policy, each in found.items()}
    work = {policy: each.flops for policy, each in found.items()}
    assert kept[True] < kept[2] < kept[3] < kept[False]
    inputs = 6 * 4 * 64 * 2 * max(LENGTHS)  # of layers, but for the first, whose input the model itself holds on to
    assert kept["tiled"] == kept[True] == kept["offload"] + inputs
    assert kept[True] < kept["selective"] < 0.75 * kept[False]
    assert work["selective"] == work[False] < work[3] < work[2] < work[True]
    again = work[True] - work[False]
    assert work[2] - work[False] == pytest.approx(again * 4 / 7, rel=1e-6)


@pytest.mark.parametrize("policy", EVERY)
def test_what_is_planned_is_what_is_live(seven: Callable[[Any], Prediction], tmp_path: Path, policy: Any) -> None:
    """The same pass over real tensors, taken down operation by operation."""
    planned_peak = seven(policy).memory
    recipe_of(tmp_path, QWEN)
    model = real(tmp_path).train()
    recompute_layers(model, policy)
    live = live_peak(model, planned(NextToken(None), LENGTHS))
    expected = planned_peak.peak - planned_peak.weights - planned_peak.optimizer
    assert live <= expected < 1.2 * live  # fused kernels hold less


def live_peak(model: PreTrainedModel, batch: Batch) -> int:
    """Return the most bytes that tensors of a real pass hold at once, the weights and the batch excepted."""
    subject, trace = Policy(model, head=declared_head(model)), Trace()
    trace.ignore(
        [*subject.parameters(), *subject.buffers(), *(v for v in vars(batch).values() if isinstance(v, Tensor))]
    )
    with trace:
        loss, _ = NextToken(None).loss(subject, batch)
        loss.backward()
    return trace.timeline().peak


def test_attention_is_planned_by_the_kernel_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that continue others: torch joins the keys of each with those before it, which the kernel does not."""
    built = skeleton(recipe := recipe_of(tmp_path, QWEN), "fp32", CPU)
    model = real(tmp_path).train()
    samples = [Example.longest(str(number), length) for number, length in enumerate((96, 64, 64, 64))]
    batch, work, peaks = packed(samples, (None, 0, 0, 0)), set(), []
    for kernel in (True, False):
        monkeypatch.setattr(CHOICES, "always", kernel)
        found = predict(recipe, built, batch)
        peaks.append(found.memory.peak - found.memory.weights - found.memory.optimizer)
        work.add(found.flops)
        assert peaks[-1] == pytest.approx(live_peak(model, batch), rel=0.02)
    assert len(work) == 1
    assert peaks[0] < 0.95 * peaks[1] or not CHOICES.kernels()


def test_auto_takes_the_fastest_that_fits(tmp_path: Path) -> None:
    few = {"num_hidden_layers": 3}
    peaks = {policy: predicted(tmp_path, policy, **few).memory.peak for policy in POLICIES}
    recipe = recipe_of(tmp_path, QWEN | few, gradient_checkpointing="auto")

    def chosen(room: int) -> Any:
        return lightest(recipe, "fp32", CPU, lambda built: planned(NextToken(None), LENGTHS), room)

    assert [chosen(peaks[policy]) for policy in POLICIES] == list(POLICIES)
    with pytest.raises(GymError, match="whatever is computed again") as caught:
        chosen(peaks["tiled"] - 1)
    assert caught.value.problems[0].key == "train.gradient_checkpointing"


def test_a_process_among_several_plans_for_a_processor_as_one_alone(model_path: Path, tmp_path: Path) -> None:
    """There a processor is a device with a number."""
    recipe = load_recipe({"model": str(model_path), "algorithm": "sft", "adapter": "lora", "data": "none.jsonl"})
    asked = [PlannedRun(recipe, model_path, "fp32", device, samples(9)) for device in (CPU, torch.device("cpu", 0))]
    one, other = map(Fitting().predicted_bytes, asked)
    assert one == other


def test_a_run_and_a_plan_settle_auto_alike(model_path: Path, tmp_path: Path) -> None:
    run = make_run(model_path, tmp_path / "run", gradient_checkpointing="auto", max_steps=2)
    asked = PlannedRun(run.recipe, model_path, "fp32", CPU, samples(9))
    plain = run.recipe.train.model_copy(update={"gradient_checkpointing": False})
    peak = Fitting().predicted_bytes(replace(asked, recipe=replace(run.recipe, train=plain)))
    for room, expected in ((10**12, False), (peak, False), (peak - 1, "selective")):
        assert Fitting(memory=lambda device, processes, room=room: room).settle(asked) == {
            "gradient_checkpointing": expected
        }
    assert settle(run, asked).gradient_checkpointing is False
    assert plan(recipe_of(tmp_path, QWEN, gradient_checkpointing="auto", batch_size=2)).gradient_checkpointing is False
    with pytest.raises(RecipeError, match="either the batch or what is computed again"):
        plan(recipe_of(tmp_path, QWEN, gradient_checkpointing="auto", batch_tokens="auto"))


def test_a_run_trains_with_what_was_settled_before(model_path: Path, tmp_path: Path) -> None:
    run = make_run(model_path, tmp_path / "run", gradient_checkpointing="auto", max_steps=2)
    before = {
        "name": "theirs",
        "dist": "gym-theirs",
        "version": "3",
        "settled": {"gradient_checkpointing": "selective"},
    }
    run.record.update(planner=before)
    train(run)
    assert run.record.read()["planner"] == before
    asked = PlannedRun(run.recipe, model_path, "fp32", CPU, samples(9))
    assert settle(run, asked).gradient_checkpointing == "selective", "as recorded"

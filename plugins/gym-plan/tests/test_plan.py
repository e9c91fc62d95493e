"""The plan: what it predicts is what a real pass keeps, and it needs no weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from gym_torch_bench import NextToken, make_run, train
from gym_torch_plans import CPU, EXPERTS, QWEN, recipe_of
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM

from gym_core import GymError, load_recipe
from gym_plan.auto import SMALLEST, Fitting, largest
from gym_plan.commands import plan
from gym_plan.machine import group_limits, memory_at_hand, room
from gym_plan.memory import Prediction, predict
from gym_plan.plan import plan as plan_of
from gym_plan.show import advice
from gym_plan.skeleton import skeleton
from gym_plan.synthetic_examples import lengths_of, planned
from gym_plan.trace import Trace
from gym_testkit.architectures import LLAMA_70B
from gym_testkit.bench import Bench
from gym_torch import DDP
from gym_torch.packing import PACKED
from gym_torch.policy import Policy


def predicted(folder: Path, config: dict[str, Any], adapter: str = "full", **options: Any) -> Prediction:
    recipe = recipe_of(folder, config, adapter, **options)
    return predict(recipe, skeleton(recipe, "fp32", CPU), planned(NextToken(None), [128, 96]))


def test_a_trace_sees_what_is_live_and_when_it_goes() -> None:
    trace = Trace()
    with trace:
        one = torch.empty(1024)
        view = one[:10]
        two = one + 1
        del one, view
        three = two * 2
        del two, three
        torch.empty(1)
    assert trace.timeline().live.tolist() == [4096, 4096, 8192, 8192, 512]


def test_gradients_of_a_weight_used_twice_are_summed_in_place() -> None:
    trace = Trace()
    with FakeTensorMode():
        weight = torch.empty(1024, 1024, requires_grad=True)
        trace.ignore([weight])
        with trace:
            ((weight * 2).sum() + (weight * 3).sum()).backward()
    assert 2 * weight.nbytes <= trace.timeline().peak < 2.1 * weight.nbytes


@pytest.mark.parametrize("config", [QWEN, EXPERTS])
def test_activations_are_what_autograd_saves(tmp_path: Path, config: dict[str, Any]) -> None:
    found = predicted(tmp_path, config).memory
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path), dtype=torch.float32).train()
    policy, batch = Policy(model), planned(NextToken(None), [128, 96])
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = policy.hidden(batch)
    saved = sum(storage.nbytes() for storage in kept.values())
    assert hidden.requires_grad
    # What is live when the backbone returns is a little more than what autograd saves of it.
    assert saved <= found.activations < 1.2 * saved
    assert found.weights == sum(weight.nbytes for weight in model.parameters()) + sum(
        buffer.nbytes for buffer in model.buffers()
    )
    assert found.gradients == sum(weight.nbytes for weight in model.parameters())
    assert found.optimizer == 2 * found.gradients


def test_recomputing_layers_saves_memory_and_costs_work(tmp_path: Path) -> None:
    plain, frugal = (predicted(tmp_path, QWEN, gradient_checkpointing=on) for on in (False, True))
    assert frugal.memory.activations < plain.memory.activations / 4
    assert frugal.memory.peak < plain.memory.peak
    assert frugal.flops > 1.2 * plain.flops


def test_floating_point_operations_are_those_of_the_layers(tmp_path: Path) -> None:
    found = predicted(tmp_path, QWEN)
    rows, targets = 2 * 128, 127 + 95  # padding is computed too
    attention, middle, dim = 64 * 64 * 2 + 64 * 32 * 2, 3 * 64 * 192, 64
    layers = 6 * 7 * rows * (attention + middle)
    head = 6 * targets * dim * 1000  # a single chunk: forward once, backward by input and by weight
    scores = 7 * (4 + 10) * 2 * 4 * 128 * 128 * 16
    assert found.flops == pytest.approx(layers + head + scores, rel=0.05)


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_seventy_billion_parameters_need_only_their_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapter: str
) -> None:
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    text = {
        "model": {"path": str(tmp_path), "dtype": "bf16"},
        "data": "none.jsonl",
        "algorithm": "sft",
        "adapter": adapter,
        "train": {"batch_tokens": 4096, "max_steps": 10, "precision": "bf16"},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(text))
    done = CliRunner().invoke(plan, [str(tmp_path / "recipe.yaml"), "--json"], catch_exceptions=False)
    made = json.loads(done.output)
    base, low_rank = 70_553_706_496, 103_546_880
    assert made["trainable"] == (base if adapter == "full" else low_rank)
    assert made["parameters"] == base + (0 if adapter == "full" else low_rank)
    assert made["memory"]["optimizer"] == 8 * made["trainable"]
    assert made["memory"]["peak"] > made["memory"]["weights"] + made["memory"]["optimizer"]
    assert (made["steps"], made["tokens"]) == (10, 40_960)
    assert made["model_bytes"] == (2 * base if adapter == "full" else 4 * low_rank)
    shown = CliRunner().invoke(plan, [str(tmp_path / "recipe.yaml")]).output
    assert "predicted peak" in shown
    assert shown.splitlines()[-1].startswith("what trains takes" if adapter == "full" else "weights take")


@pytest.mark.parametrize(
    ("cutoff", "key", "value"), [(16, "adapter", "lora"), (4096, "train.gradient_checkpointing", True)]
)
def test_what_to_change_makes_it_smaller(tmp_path: Path, cutoff: int, key: str, value: Any) -> None:
    recipe_of(tmp_path, QWEN)
    data = {"sources": ["none.jsonl"], "cutoff": cutoff}
    recipe = {"model": str(tmp_path), "data": data, "algorithm": "sft", "train": {"batch_size": 1, "precision": "fp32"}}
    made, changed = (plan_of(load_recipe(recipe, more)) for more in ((), (f"{key}={json.dumps(value)}",)))
    assert f"set {key}: {json.dumps(value)}".replace('"', "") in advice(made)
    assert changed.memory.peak < 0.8 * made.memory.peak


@pytest.mark.parametrize(("steps", "most"), [(9, 3), (2, 2)])
def test_the_best_checkpoint_is_one_more_on_the_disk(bench: Bench, steps: int, most: int) -> None:
    recipe = bench.recipe("sft", max_steps=steps, save_every=1, eval_every=3, keep_last=1)
    recipe["data"] = {"sources": [recipe["data"]], "validation": 4}
    usual, best = (plan_of(load_recipe(recipe, more)) for more in ((), ("train.keep_best=true",)))
    assert (usual.checkpoints, best.checkpoints) == (2, most)


def test_a_configuration_that_makes_no_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(GymError, match="the model cannot be built: RuntimeError"):
        plan_of(recipe_of(tmp_path, QWEN | {"hidden_size": -4}))


def test_auto_takes_the_largest_batch_that_fits(tmp_path: Path) -> None:
    most = {"cpu": 2048}
    recipe = recipe_of(tmp_path, QWEN | {"num_hidden_layers": 1}, batch_tokens="auto")
    built = skeleton(recipe, "fp32", CPU)
    peak = predict(recipe, built, planned(NextToken(None, built.layout), lengths_of(1024, 1024))).memory.peak
    assert largest(recipe, built, peak, most) == 1024
    assert largest(recipe, built, peak - 1024, most) == SMALLEST
    with pytest.raises(GymError, match="would need") as caught:
        largest(recipe, built, peak // 4, most)
    assert caught.value.problems[0].key == "train.batch_tokens"


def test_processes_on_one_machine_share_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr("gym_plan.auto.largest", lambda recipe, built, memory: sizes.append(memory) or 512)
    recipe = recipe_of(tmp_path, QWEN | {"num_hidden_layers": 1}, batch_tokens="auto")
    planned_run: Any = SimpleNamespace(recipe=recipe, precision="fp32", device=CPU)
    Fitting().settle(planned_run)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    Fitting().settle(planned_run)
    assert sizes == [room(CPU), room(CPU, 2)]
    assert abs(2 * sizes[1] - sizes[0]) <= 2
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name)
    two = plan_of(replace(recipe_of(tmp_path, QWEN), distributed=DDP(processes=2)))
    assert (two.processes, two.room) == (2, room(CPU, 2))


GROUPS = {
    "of version 2": (
        "0::/a/b/c\n",
        {"a": "300", "a/b": "200", "a/b/c": "max", "a/other": "7"},
        "memory.max",
        [200, 300],
    ),
    "of version 1": (
        "5:cpu:/x\n4:memory,hugetlb:/a/b\n1:name=systemd:/a\n0::/\n",
        {"memory": "9223372036854771712", "memory/a": "300", "memory/a/b": "400", "memory/x": "7"},
        "memory.limit_in_bytes",
        [400, 300, 9223372036854771712],
    ),
    "named as on the host": ("4:memory:/docker/f0\n", {"memory": "300"}, "memory.limit_in_bytes", [300]),
    "outside what is shown": ("0::/../../other\n", {"": "300", "other": "7"}, "memory.max", [300]),
    "not told": (None, {"": "300"}, "memory.max", [300]),
}


@pytest.mark.parametrize("case", GROUPS)
def test_all_control_groups_around_a_process_limit_its_memory(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, limits, name, expected = GROUPS[case]
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    if listed is not None:
        own.write_text(listed)
    for folder, limit in limits.items():
        (groups / folder).mkdir(parents=True, exist_ok=True)
        (groups / folder / name).write_text(f"{limit}\n")
    assert list(group_limits(groups, own)) == expected
    monkeypatch.setattr("gym_plan.machine.GROUPS", groups)
    monkeypatch.setattr("gym_plan.machine.OWN_GROUPS", own)
    assert memory_at_hand(CPU) == min(expected)


def test_a_run_records_what_auto_became_and_what_memory_it_took(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gym_torch.planners.BRIEF", 0.0)
    run = make_run(model_path, tmp_path / "run", batch_tokens="auto", batch_size=None, max_steps=2)
    train(run)
    found = run.record.read()
    assert found["planner"]["settled"] == {"batch_tokens": 8192}
    assert (found["planner"]["name"], found["planner"]["dist"]) == ("memory", "gym-plan")
    assert found["memory"]["predicted_bytes"] > 0
    assert found["memory"]["measured_bytes"] >= 0  # a process that has run other tests may have had it all before


def test_a_second_copy_holds_matrices_as_they_are_stored_and_the_rest_as_what_trains(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN | {"dtype": "bfloat16"}))
    recipe = load_recipe({"model": str(tmp_path), "data": "none.jsonl", "algorithm": "tdpo1"})
    built = skeleton(recipe, "bf16", CPU)
    (reference,) = built.further
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    rest = sum(weight.numel() for name, weight in model.named_parameters() if weight.dim() == 1 or "embed" in name)
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    assert built.weights - buffers == 4 * built.parameters
    assert reference.weights - buffers == 2 * (built.parameters - rest) + 4 * rest


@pytest.mark.parametrize("recompute", [False, "tiled"])
def test_processes_that_share_rows_each_have_their_part_of_them(tmp_path: Path, recompute: bool | str) -> None:
    """All work is still there; what is left of the activations is a little more than a half and a quarter."""
    found = dict[int, Prediction]()
    for size in (1, 2, 4):
        recipe = recipe_of(tmp_path, QWEN, gradient_checkpointing=recompute)
        shared = replace(recipe, distributed=DDP(context_parallel_size=size))
        found[size] = predict(shared, skeleton(shared, "fp32", CPU), planned(NextToken(None, PACKED), [128, 96]))
    for size, part in found.items():
        assert part.memory.activations == pytest.approx(found[1].memory.activations / size, rel=0.25)
        assert part.memory.weights == found[1].memory.weights
        assert part.flops == pytest.approx(found[1].flops, rel=0.02)


@pytest.fixture
def prompted(bench: Bench) -> dict[str, Any]:
    """A recipe of one step over samples that begin with the same 40 words."""
    system = {"role": "system", "content": "word " * 40}
    rows = [
        {"messages": [system, {"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": str(n)}]}
        for n in range(8)
    ]
    return bench.recipe("sft", max_steps=1) | {"data": str(bench.file(rows))}


def test_a_plan_sees_what_a_run_computes(prompted: dict[str, Any]) -> None:
    apart = prompted | {"adapter": {"name": "lora", "rank": 2, "dropout": 0.1}}
    once, each = plan_of(load_recipe(prompted | {"adapter": {"name": "lora", "rank": 2}})), plan_of(load_recipe(apart))
    assert once.batch_tokens < each.batch_tokens / 2
    assert once.tokens == each.tokens
    assert once.seconds < each.seconds / 2


def test_tokens_are_counted_as_in_the_run(prompted: dict[str, Any], bench: Bench) -> None:
    ran = bench.run(prompted).outcome.output
    assert plan_of(load_recipe(prompted)).tokens == json.loads((ran / "run.json").read_text())["training"]["tokens"]


def test_the_largest_batch_is_found_however_late_it_comes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_plan.workload.LOOK", 2)
    rows = [{"text": "word " * (60 if n == 29 else 1 + n % 3)} for n in range(30)]
    recipe = bench.recipe("pretrain", max_steps=None, batch_size=2, shuffle=False)
    made = plan_of(load_recipe(recipe | {"data": str(bench.file(rows))}))
    assert made.length >= 60
    assert made.based_on == "the largest batch of the 2 steps with the most tokens"

"""Recipes that name an optimizer: LLaMA-Factory's keys, whole runs, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import gym_optim
import gym_torch.loop.train_loop
from gym_core import GymError, RecipeError, execute, load_recipe
from gym_core.discovery import entries
from gym_optim.kinds import Optimizer
from gym_plan.plan import plan
from gym_torch.distributed.strategies import check_cut
from gym_torch.loop.step_batches import reseed


@pytest.mark.proves("lomo")
@pytest.mark.parametrize(
    ("train", "key"),
    [({}, "train.max_grad_norm"), ({"max_grad_norm": 0.0, "accumulate": 2, "batch_size": 4}, "train.accumulate")],
)
def test_an_optimizer_in_the_backward_pass_refuses_what_it_would_get_wrong(bench: Any, train: Any, key: str) -> None:
    recipe = bench.recipe("sft", **train) | {"optimizer": "lomo"}
    with pytest.raises(RecipeError, match="an optimizer in the backward pass cannot") as caught:
        load_recipe(recipe).check()
    assert caught.value.problems[0].key == key


def test_in_the_backward_pass_a_run_is_the_same_run(bench: Any) -> None:
    recipe = bench.recipe("sft", max_steps=4, max_grad_norm=0.0)
    plain = bench.run(recipe | {"optimizer": "adamw"}, "plain").series("loss")
    inside = bench.run(recipe | {"optimizer": {"name": "adamw", "in_backward": True}}, "inside").series("loss")
    assert inside == pytest.approx(plain, rel=1e-5)
    assert plain[-1] < plain[0]


@pytest.mark.proves("schedule_free_adamw")
def test_the_model_of_a_schedule_free_run_is_the_average(bench: Any) -> None:
    recipe = bench.recipe("sft", max_steps=4, save_every=4)
    recipe |= {"optimizer": "schedule_free_adamw", "scheduler": "constant"}
    output = bench.run(recipe).outcome.output
    step = next((output / "checkpoints").glob("step-*4"))
    state, trained = load_file(step / "optimizer.safetensors"), load_file(step / "model.safetensors")
    made = load_file(output / "model" / "model.safetensors")
    for name, weight in trained.items():
        average = torch.lerp(weight, state[f"model.{name}//z"], 1 - 1 / 0.9)
        torch.testing.assert_close(made[name], average)
        assert not torch.equal(made[name], weight) or weight.dim() < 2


@pytest.mark.parametrize(("schedule", "warned"), [({}, True), ({"scheduler": "constant"}, False)])
def test_a_rate_that_falls_beside_an_average_is_told(bench: Any, capsys: Any, schedule: Any, warned: bool) -> None:
    bench.run(bench.recipe("sft", max_steps=1) | {"optimizer": "schedule_free_adamw"} | schedule)
    assert ("set scheduler: constant" in capsys.readouterr().err) == warned


@pytest.mark.parametrize("optimizer", ["galore", "apollo", "apollo_mini"])
def test_an_optimizer_for_no_module_is_refused(bench: Any, optimizer: str) -> None:
    for empty in ([], "", ","):
        recipe = bench.recipe("sft") | {"optimizer": {"name": optimizer, "target_modules": empty}}
        with pytest.raises(RecipeError, match="no module is named"):
            load_recipe(recipe | {"output": "x"})


class Crash(Exception):
    """Stands for whatever may end a process."""


def crash(seed: int, step: int, number: int) -> None:
    reseed(seed, step, number)
    if step == 3:
        raise Crash


@pytest.mark.proves("schedule_free_adamw")
def test_a_schedule_free_run_that_evaluates_is_resumed_bit_for_bit(bench: Any, monkeypatch: Any) -> None:
    """Evaluation uses other weights than those that train, and must leave them as they were."""
    recipe = bench.recipe("sft", max_steps=6, save_every=2, eval_every=2)
    recipe |= {"optimizer": "schedule_free_adamw", "scheduler": "constant"}
    recipe["data"] = {"sources": [recipe["data"]], "validation": 0.25}
    whole = bench.run(recipe, "whole")
    without = bench.run(recipe | {"train": recipe["train"] | {"eval_every": 6}}, "without")
    assert whole.series("loss") == without.series("loss")
    again = recipe | {"output": str(bench.path("crashed"))}
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(gym_torch.loop.train_loop, "reseed", crash)
        execute(load_recipe(again))
    left, right = (
        load_file(outcome.output / "model" / "model.safetensors")
        for outcome in (execute(load_recipe(again)), whole.outcome)
    )
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_plan_knows_the_state_of_an_optimizer(bench: Any, tmp_path: Path) -> None:
    recipe = bench.recipe("sft") | {"output": str(tmp_path / "x")}

    def state(optimizer: Any) -> int:
        return plan(load_recipe(recipe | {"optimizer": optimizer})).memory.optimizer

    full, embedding = state("adamw"), 8 * 264 * 32
    assert embedding < state({"name": "galore", "rank": 4}) < full
    assert state("lomo") == 0
    layer = (full - embedding - 8 * 32) // 2  # two layers and the last norm
    assert state({"name": "lisa", "activated_layers": 1}) == full - layer
    assert state("badam") == layer
    assert state({"name": "badam", "include_embedding": True}) == max(layer, embedding)


@pytest.mark.proves("adalomo", "lomo")
def test_a_plan_knows_which_gradients_an_optimizer_holds(bench: Any, tmp_path: Path) -> None:
    recipe = bench.recipe("sft") | {"output": str(tmp_path / "x")}

    def memory(optimizer: Any) -> Any:
        return plan(load_recipe(recipe | {"optimizer": optimizer})).memory

    plain, inside = memory("sgd"), memory({"name": "sgd", "in_backward": True})
    assert plain.optimizer == inside.optimizer == memory("lomo").optimizer == 0
    assert inside.gradients == memory("adalomo").gradients == memory("lomo").gradients == 4 * 264 * 32
    assert plain.gradients > inside.gradients and plain.peak > inside.peak
    for name in ("lisa", "badam"):
        part = memory({"name": name, **({"activated_layers": 1} if name == "lisa" else {})})
        assert part.gradients == part.optimizer // 2 + inside.gradients
        assert part.peak == inside.peak + part.optimizer + part.optimizer // 2


#: Compared with one process in `tests/test_processes.py`.
IN_SHARDS = {"adamw", "lion", "lora_plus", "schedule_free_adamw", "sgd"}
#: Elementwise, and refused for another reason, which `ddp` has too.
IN_ONE_PROCESS = {"lomo"}


@pytest.mark.parametrize("name", sorted(entry.name for entry in entries("optimizers") if entry.dist == "gym-optim"))
def test_fsdp_takes_what_was_compared_and_refuses_the_others_by_name(name: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    base = {"model": "tiny", "data": "none.jsonl", "algorithm": "sft", "optimizer": name}
    check_cut(load_recipe(base | {"distributed": "ddp"}))
    cut = load_recipe(base | {"distributed": "fsdp"})
    if name in IN_SHARDS | IN_ONE_PROCESS:
        check_cut(cut)
        return
    with pytest.raises(RecipeError, match=f"{name} needs whole parameters") as caught:
        check_cut(cut)
    assert caught.value.problems[0].key == "optimizer" and "distributed: ddp" in caught.value.problems[0].fix


def test_fsdp_refuses_an_optimizer_that_does_not_say_whether_it_is_elementwise(monkeypatch: Any) -> None:
    class Silent(Optimizer):
        """Of a package that declares nothing."""

    monkeypatch.setenv("WORLD_SIZE", "2")
    recipe = load_recipe({"model": "tiny", "data": "none.jsonl", "algorithm": "sft", "distributed": "fsdp"})
    check_cut(recipe)  # the default
    with pytest.raises(GymError, match="Silent does not declare `elementwise`"):
        check_cut(replace(recipe, optimizer=Silent()))


def test_what_needs_whole_parameters_refuses_shards() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        names = ("layers.0.q.lora_A.x.weight", "layers.0.q.lora_B.x.weight")
        shards = [(name, torch.nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))) for name in names]
        for name in ("GaLore", "Muon", "SOAP", "AdamMini", "Adafactor", "LISA", "LoRAPro"):
            with pytest.raises(GymError, match=f"{name} needs whole parameters"):
                getattr(gym_optim, name)(shards)
        for kind in (gym_optim.Lion, gym_optim.ScheduleFreeAdamW):
            optimizer = kind(shards, lr=0.1)
            for _, shard in shards:
                shard.grad = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
            optimizer.step()
            assert (shards[0][1].full_tensor() < 1).all()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["adamw", "lion", "soap"])
def test_the_betas_of_torch_are_answered_with_both_of_ours(name: str) -> None:
    given = {"algorithm": "sft", "optimizer": {"name": name, "betas": [0.9, 0.95]}}
    with pytest.raises(RecipeError) as caught:
        load_recipe(given)
    assert "did you mean `beta1`, `beta2`?" in [problem.fix for problem in caught.value.problems]

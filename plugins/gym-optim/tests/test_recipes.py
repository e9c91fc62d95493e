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
from transformers.training_args import OptimizerNames

import gym_optim
import gym_torch.loop.train_loop
from gym_core import GymError, Optimizer, Recipe, RecipeError, execute, load_recipe
from gym_core.discovery import entries
from gym_optim.config import (
    APOLLO,
    LOMO,
    SGD,
    WSD,
    Adafactor,
    AdaLomo,
    AdamMini,
    AdamW,
    AdamW8bit,
    BAdam,
    Cosine,
    GaLore,
    Lion,
    LoRAPlus,
    Muon,
    PagedAdamW8bit,
    Polynomial,
    ScheduleFreeAdamW,
)
from gym_plan.plan import plan
from gym_torch.distributed.strategies import check_cut
from gym_torch.loop.step_batches import reseed


def factory(**keys: Any) -> Recipe:
    """Return the recipe that a file of LLaMA-Factory means."""
    base = {"model_name_or_path": "tiny", "stage": "sft", "finetuning_type": "full", "dataset": "identity"}
    return load_recipe(base | {"output_dir": "runs/x"} | keys)


@pytest.mark.parametrize(
    ("keys", "optimizer"),
    [
        ({}, AdamW()),
        ({"use_galore": False, "adam_beta2": 0.95}, AdamW(beta2=0.95)),
        (
            {"use_galore": True, "galore_layerwise": True, "galore_target": "mlp,self_attn", "galore_rank": 64}
            | {"galore_scale": 2.0, "galore_proj_type": "reverse_std", "galore_update_interval": 50},
            GaLore(rank=64, scale=2.0, modules="mlp,self_attn", side="long", interval=50, in_backward=True),
        ),
        ({"use_galore": True}, GaLore(rank=16, scale=2.0)),
        (
            {"use_apollo": True, "apollo_rank": 1, "apollo_scale": 128.0, "apollo_scale_type": "tensor"}
            | {"apollo_proj": "random", "apollo_proj_type": "std", "apollo_scale_front": True},
            APOLLO(rank=1, scale=128.0, per="tensor", epsilon=1e-8),
        ),
        (
            {"use_badam": True, "badam_mode": "layer", "badam_switch_mode": "descending", "badam_switch_interval": 20}
            | {"badam_verbose": 2, "badam_start_block": 3},
            BAdam(order="descending", interval=20, start=3),
        ),
        ({"use_adam_mini": True, "weight_decay": 0.1}, AdamMini(weight_decay=0.1)),
        ({"use_muon": True}, Muon(weight_decay=0.0, beta2=0.999)),
        ({"use_muon": True, "weight_decay": 0.1, "adam_beta2": 0.95}, Muon()),
        ({"optim": "lion_32bit"}, Lion(beta2=0.999)),
        ({"optim": "adamw_torch", "use_adam_mini": True}, AdamMini()),
        ({"optim": "adamw_torch_fused", "use_galore": False, "adam_beta2": 0.95}, AdamW(beta2=0.95)),
        ({"finetuning_type": "lora", "loraplus_lr_ratio": 16.0}, LoRAPlus(ratio=16.0)),
        ({"loraplus_lr_ratio": 4, "loraplus_lr_embedding": "1e-5"}, LoRAPlus(ratio=4.0, embedding_lr=1e-5)),
    ],
)
def test_flat_keys_select_the_optimizer_and_its_options(keys: dict[str, Any], optimizer: Any) -> None:
    assert factory(**keys).optimizer == optimizer


def test_schedulers_of_the_flat_dialect() -> None:
    assert factory(lr_scheduler_type="warmup_stable_decay").scheduler == WSD(decay=2 / 3)
    assert factory(lr_scheduler_type="cosine_with_restarts").scheduler == Cosine()
    assert factory(
        lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lr_rate": 0.1}
    ).scheduler == Cosine(floor=0.1)
    assert factory(lr_scheduler_type="polynomial", lr_scheduler_kwargs={"power": 2.0}).scheduler == Polynomial(power=2)
    for kind, options in (
        ("warmup_stable_decay", {"num_decay_steps": 10}),
        ("cosine_with_restarts", {"num_cycles": 2}),
    ):
        with pytest.raises(RecipeError, match="write the section out"):
            factory(lr_scheduler_type=kind, lr_scheduler_kwargs=options)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"use_muon": True, "optim": "adafactor"}, "contradicts `optim`"),
        ({"use_muon": True, "use_galore": True}, "contradicts `use_galore`"),
        ({"galore_rank": 8}, "belongs to optimizer `galore`"),
        ({"use_apollo": True, "apollo_proj": "svd"}, "only `random` is done here, not `svd`"),
        ({"use_badam": True, "badam_mode": "ratio"}, "only whole layers take turns here"),
        ({"optim": "adamw_of_tomorrow"}, "no installed plugin brings"),
    ],
)
def test_flat_keys_that_mean_nothing_together_are_errors(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(GymError, match=why):
        factory(**keys)


GALORE = {"optim": "galore_adamw", "optim_target_modules": "all-linear"}
#: What each `optim` of transformers means with what transformers gives it; the others are refused, with what to set.
MEANT: dict[str, Any] = {
    "adamw_torch": AdamW(),
    "adamw_torch_fused": AdamW(),
    "adamw_torch_8bit": AdamW8bit(),
    "adamw_bnb_8bit": AdamW8bit(),
    "adamw_8bit": AdamW8bit(),
    "paged_adamw_8bit": PagedAdamW8bit(),
    "adafactor": Adafactor(),
    "sgd": SGD(),
    "lion_32bit": Lion(beta2=0.999),
    "galore_adamw": GaLore(rank=128, scale=0.25, interval=200, epsilon=1e-6),
    "galore_adamw_layerwise": GaLore(rank=128, scale=0.25, interval=200, epsilon=1e-6, in_backward=True),
    "apollo_adamw": APOLLO(rank=128, scale=1.0, interval=200, epsilon=1e-8),
    "apollo_adamw_layerwise": APOLLO(rank=128, scale=1.0, interval=200, epsilon=1e-8, in_backward=True),
    "lomo": LOMO(),
    "adalomo": AdaLomo(),
    "schedule_free_adamw": ScheduleFreeAdamW(),
}


@pytest.mark.parametrize("name", [each.value for each in OptimizerNames])
def test_every_optim_of_transformers_means_the_same_or_is_refused(name: str) -> None:
    if name in MEANT:
        assert factory(optim=name).optimizer == MEANT[name]
        assert factory(optim=name.upper()).optimizer == MEANT[name]
        return
    with pytest.raises(GymError, match=f"there is no `{name}` here; set optim: ") as caught:
        factory(optim=name)
    assert [problem.key for problem in caught.value.problems] == ["optim"]
    instead = caught.value.problems[0].why.partition("set optim: ")[2].partition(",")[0]
    assert instead in MEANT, "what is to be set is there"


@pytest.mark.parametrize(
    ("keys", "optimizer"),
    [
        (
            {"optim": "galore_adamw", "optim_target_modules": ["mlp", "self_attn"]}
            | {"optim_args": "rank=64, update_proj_gap=100, scale=0.10, proj_type=reverse_std"},
            GaLore(rank=64, interval=100, scale=0.1, side="long", modules=("mlp", "self_attn"), epsilon=1e-6),
        ),
        (
            {
                "optim": "apollo_adamw",
                "optim_args": "rank=1,scale=128,scale_type=tensor,proj=random",
                "adam_epsilon": 1e-6,
            },
            APOLLO(rank=1, scale=128.0, per="tensor", epsilon=1e-6),
        ),
        ({"optim": "sgd", "optim_args": "momentum=0.9,nesterov=true"}, SGD(momentum=0.9, nesterov=True)),
        ({"optim": "schedule_free_adamw", "optim_args": "r=1.0,weight_lr_power=2.0"}, ScheduleFreeAdamW(power=1.0)),
        (GALORE | {"adam_epsilon": 1e-8, "adam_beta2": 0.95}, GaLore(beta2=0.95)),
        ({"optim": "adamw_torch", "optim_args": ""}, AdamW()),
    ],
)
def test_optim_args_and_targets_are_those_of_transformers(keys: dict[str, Any], optimizer: Any) -> None:
    assert factory(**keys).optimizer == optimizer


@pytest.mark.parametrize(
    ("keys", "key", "why"),
    [
        (GALORE | {"galore_rank": 8}, "galore_rank", "goes with `use_galore`, and here `optim` chooses the optimizer"),
        ({"use_galore": True, "optim_args": "rank=8"}, "optim_args.rank", "goes with `optim`"),
        ({"use_galore": True, "optim_target_modules": ["mlp"]}, "optim_target_modules", "goes with `optim`"),
        (GALORE | {"optim_args": "rnk=8"}, "optim_args.rnk", "unknown key"),
        (GALORE | {"optim_args": "rank"}, "optim_args", "`rank` has no value"),
        (GALORE | {"optim_target_modules": r".*mlp\\.up.*"}, "optim_target_modules", "a pattern is not taken here"),
        ({"optim": "sgd", "optim_args": "dampening=0.5"}, "optim_args.dampening", "only `0` is done here"),
        ({"optim_target_modules": ["mlp"]}, "optim_target_modules", "goes with `optim`|belongs to optimizer"),
    ],
)
def test_keys_of_the_other_way_to_choose_are_refused(keys: dict[str, Any], key: str, why: str) -> None:
    with pytest.raises(GymError, match=why) as caught:
        factory(**keys)
    assert [problem.key for problem in caught.value.problems] == [key]


@pytest.mark.proves("lomo")
@pytest.mark.parametrize(
    ("train", "key"),
    [({}, "train.max_grad_norm"), ({"max_grad_norm": 0.0, "accumulate": 2, "batch_size": 4}, "train.accumulate")],
)
def test_an_optimizer_in_the_backward_pass_refuses_what_it_would_get_wrong(bench: Any, train: Any, key: str) -> None:
    recipe = bench.recipe("sft", **train) | {"optimizer": "lomo"}
    with pytest.raises(RecipeError, match="an optimizer in the backward pass cannot") as caught:
        bench.run(recipe)
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
    assert state({"name": "lisa", "layers": 1}) == full - layer
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
        part = memory({"name": name, **({"layers": 1} if name == "lisa" else {})})
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

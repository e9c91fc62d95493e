"""Keys that choose and fill optimizers and schedulers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import get_scheduler
from transformers.training_args import OptimizerNames

from gym_adapters import DoRA
from gym_core import GymError, Recipe, RecipeError, load_recipe
from gym_optim.config import (
    APOLLO,
    LOMO,
    SGD,
    Adafactor,
    AdaLomo,
    AdamMini,
    AdamW,
    AdamW8bit,
    BAdam,
    GaLore,
    Lion,
    LoRAPlus,
    Muon,
    PagedAdamW8bit,
    ScheduleFreeAdamW,
)
from gym_optim.kinds import Scheduler


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
            GaLore(
                rank=64,
                scale=2.0,
                target_modules="mlp,self_attn",
                proj_type="reverse_std",
                update_proj_gap=50,
                in_backward=True,
            ),
        ),
        ({"use_galore": True}, GaLore(rank=16, scale=2.0)),
        (
            {"use_apollo": True, "apollo_rank": 1, "apollo_scale": 128.0, "apollo_scale_type": "tensor"}
            | {"apollo_proj": "random", "apollo_proj_type": "std", "apollo_scale_front": True},
            APOLLO(rank=1, scale=128.0, scale_type="tensor", epsilon=1e-8),
        ),
        (
            {"use_badam": True, "badam_mode": "layer", "badam_switch_mode": "descending", "badam_switch_interval": 20}
            | {"badam_verbose": 2, "badam_start_block": 3},
            BAdam(switch_mode="descending", switch_interval=20, start_block=3),
        ),
        ({"use_adam_mini": True, "weight_decay": 0.1}, AdamMini(weight_decay=0.1)),
        ({"use_muon": True}, Muon(weight_decay=0.0, beta2=0.999)),
        ({"use_muon": True, "weight_decay": 0.1, "adam_beta2": 0.95}, Muon()),
        ({"optim": "lion_32bit"}, Lion(beta2=0.999)),
        ({"optim": "adamw_torch", "use_adam_mini": True}, AdamMini()),
        ({"optim": "adamw_torch_fused", "use_galore": False, "adam_beta2": 0.95}, AdamW(beta2=0.95)),
        ({"finetuning_type": "lora", "loraplus_lr_ratio": 16.0}, LoRAPlus(lr_ratio=16.0)),
        ({"loraplus_lr_ratio": 4, "loraplus_lr_embedding": "1e-5"}, LoRAPlus(lr_ratio=4.0, lr_embedding=1e-5)),
    ],
)
def test_flat_keys_select_the_optimizer_and_its_options(keys: dict[str, Any], optimizer: Any) -> None:
    assert factory(**keys).optimizer == optimizer


#: Schedules by name and options, with whose values they have after warm-up, of transformers or of LLaMA-Factory.
SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("cosine", {}),
    ("cosine", {"num_cycles": 0.5}),
    ("cosine_with_restarts", {}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1}),
    ("cosine_with_min_lr", {"min_lr": 1e-6, "num_cycles": 0.5}),
    ("constant", {}),
    ("constant_with_warmup", {}),
    ("polynomial", {}),
    ("polynomial", {"power": 2.0, "lr_end": 1e-5}),
    ("inverse_sqrt", {}),
    ("inverse_sqrt", {"timescale": 7}),
    ("warmup_stable_decay", {}),
    ("warmup_stable_decay", {"decay_type": "1-sqrt"}),
    ("warmup_stable_decay", {"decay_type": "linear", "min_lr_ratio": 0.2, "warmup_type": "linear"}),
]


@pytest.mark.parametrize("warmup", [0, 5])
@pytest.mark.parametrize(("name", "options"), SCHEDULES, ids=str)
def test_rates_after_warm_up_are_those_of_transformers(name: str, options: dict[str, Any], warmup: int) -> None:
    total, rate = 42, 1e-4
    asked = {"lr_scheduler_type": name, "learning_rate": rate, "lr_scheduler_kwargs": json.dumps(options)}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    stable = (total - warmup) // 3
    steps = {"num_decay_steps": total - warmup - stable}
    given = {**options, **(steps if name == "warmup_stable_decay" else {})}
    theirs = get_scheduler(name, optimizer, warmup, total, given).lr_lambdas[0]
    scheduler = factory(**asked).scheduler
    assert (
        isinstance(scheduler, Scheduler) and factory(**asked | {"lr_scheduler_kwargs": options}).scheduler == scheduler
    )
    factor = scheduler.build(total=total, warmup=warmup)
    assert [factor(step) for step in range(warmup, total)] == pytest.approx(
        [theirs(step) for step in range(warmup, total)], abs=1e-12
    )


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("warmup_stable_decay", {"num_decay_steps": 10}, "write the section out"),
        ("warmup_stable_decay", {"num_stable_steps": 10}, "write the section out"),
        ("warmup_stable_decay", {"decay_type": "sqrt"}, "is cosine or linear or 1-sqrt"),
        ("cosine", {"num_cycles": 2}, "only `0.5` is done here"),
        ("cosine_with_min_lr", {"min_lr": 1.0}, "a learning rate below `learning_rate`"),
        ("linear", {"power": 2.0}, "belongs to scheduler `polynomial`"),
        ("polynomial", {"powr": 2.0}, "unknown key"),
        ("polynomial", "power", "`power` has no value"),
        ("polynomial", "{power: 2}", "name=value, ..., or a mapping"),
    ],
)
def test_options_of_a_schedule_that_are_not_here_are_refused(name: str, options: Any, why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        factory(lr_scheduler_type=name, lr_scheduler_kwargs=options)


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
    "galore_adamw": GaLore(rank=128, scale=0.25, update_proj_gap=200, epsilon=1e-6),
    "galore_adamw_layerwise": GaLore(rank=128, scale=0.25, update_proj_gap=200, epsilon=1e-6, in_backward=True),
    "apollo_adamw": APOLLO(rank=128, scale=1.0, update_proj_gap=200, epsilon=1e-8),
    "apollo_adamw_layerwise": APOLLO(rank=128, scale=1.0, update_proj_gap=200, epsilon=1e-8, in_backward=True),
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
            GaLore(
                rank=64,
                update_proj_gap=100,
                scale=0.1,
                proj_type="reverse_std",
                target_modules=("mlp", "self_attn"),
                epsilon=1e-6,
            ),
        ),
        (
            {
                "optim": "apollo_adamw",
                "optim_args": "rank=1,scale=128,scale_type=tensor,proj=random",
                "adam_epsilon": 1e-6,
            },
            APOLLO(rank=1, scale=128.0, scale_type="tensor", epsilon=1e-6),
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


def test_lora_plus_goes_with_any_adapter() -> None:
    recipe = factory(finetuning_type="lora", use_dora=True, loraplus_lr_ratio=8.0)
    assert recipe.optimizer == LoRAPlus(lr_ratio=8.0) and recipe.adapter == DoRA()

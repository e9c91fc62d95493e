"""Every optimizer in a plain loop of torch: models, lists and groups, torch's names, schedules, loss scaling, bf16."""

from __future__ import annotations

import inspect
from copy import deepcopy
from typing import Any

import pytest
import torch
from optim_bench import backward, tiny
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau
from transformers import PreTrainedModel

import gym_optim
from gym_core import GymError
from gym_optim import parameter_groups

HELPERS = {"Averaging", "InBackward", "lora_plus_groups", "paged_adamw_8bit", "parameter_groups"}
KINDS = {name: getattr(gym_optim, name) for name in gym_optim.__all__ if name not in HELPERS}
ADAPTERS = {"LoRAPro", "lora_plus"}
MATRICES = {"APOLLO", "APOLLOMini", "Fira", "GaLore", "Muon", "QGaLore", "SOAP"}
PASSING = {"adalomo", "lomo"}  #: work in the backward pass
INTERVALS = ("update_proj_gap", "precondition_frequency", "interval_steps", "switch_interval")
BRIEF = {"rank": 4, **dict.fromkeys(INTERVALS, 2), "min_8bit_size": 256, "activated_layers": 1}


def arguments(name: str) -> set[str]:
    """Return what can be given to an optimizer beside parameters."""
    return inspect.signature(KINDS[name]).parameters.keys() - {"params"}


def made(name: str, params: Any, **options: Any) -> Any:
    fixed = {"rank"} if name == "APOLLOMini" else set()
    brief = {key: value for key, value in BRIEF.items() if key in arguments(name) - fixed}
    return KINDS[name](params, **brief | options)


def model_for(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    model = tiny().to(dtype)
    if name in ADAPTERS:
        model.requires_grad_(False)
        model = inject_adapter_in_model(LoraConfig(target_modules=["q_proj", "o_proj"], r=2, use_dora=True), model)
    return model.to(dtype)


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in model.parameters()]


def step(model: PreTrainedModel, optimizer: Any, number: int) -> None:
    backward(model, number)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("name", KINDS)
def test_it_takes_a_model_and_follows_schedules_of_torch(name: str) -> None:
    model = model_for(name)
    optimizer = made(name, model, lr=0.01)
    before, cycled = weights(model), {"betas", "momentum"} & optimizer.defaults.keys()
    still = LambdaLR(optimizer, lambda number: 0.0)
    step(model, optimizer, 0)
    still.step()
    assert all(torch.equal(*pair) for pair in zip(before, weights(model), strict=True))
    cycle = OneCycleLR(optimizer, 0.01, total_steps=5, cycle_momentum=bool(cycled))
    moving = {str(group.get("betas", group.get("momentum"))) for group in optimizer.param_groups}
    for number in range(1, 5):
        step(model, optimizer, number)
        cycle.step()
        moving |= {str(group.get("betas", group.get("momentum"))) for group in optimizer.param_groups}
    assert (len(moving) > 1) == bool(cycled), "momentum is where the schedule writes it"
    assert any(not torch.equal(*pair) for pair in zip(before, weights(model), strict=True))
    assert all(weight.isfinite().all() for weight in model.parameters())
    plateau, top = ReduceLROnPlateau(optimizer, factor=0.5, patience=0), optimizer.param_groups[0]["lr"]
    for _ in range(3):
        plateau.step(1.0)
    assert optimizer.param_groups[0]["lr"] < top


@pytest.mark.parametrize("name", sorted(KINDS.keys() - PASSING))
def test_it_takes_the_steps_that_a_scaled_loss_means(name: str) -> None:
    plain, scaled = model_for(name), model_for(name)
    one, other = made(name, plain, lr=0.01), made(name, scaled, lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=100)
    for number in range(3):
        step(plain, one, number)
        tokens = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(number))
        scaler.scale(scaled(input_ids=tokens, labels=tokens).loss).backward()
        scaler.step(other)
        scaler.update()
        other.zero_grad()
    for left, right in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
    before = weights(scaled)
    backward(scaled, 9)
    next(weight for weight in scaled.parameters() if weight.grad is not None).grad.fill_(float("inf"))  # type: ignore[union-attr]
    scaler.step(other)
    assert all(torch.equal(*pair) for pair in zip(before, weights(scaled), strict=True)), (
        "an infinite gradient is left out"
    )


@pytest.mark.parametrize("name", sorted(PASSING))
def test_a_scaled_loss_in_the_backward_pass_is_an_error(name: str) -> None:
    model, scaler = model_for(name), torch.amp.GradScaler("cpu")
    optimizer = made(name, model, lr=1e-9)
    tokens = torch.arange(32).view(2, 16)
    scaler.scale(model(input_ids=tokens, labels=tokens).loss).backward()
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(optimizer)


@pytest.mark.parametrize("name", [*sorted(PASSING), "BAdam", "LISA"])
def test_one_that_is_gone_lets_gradients_be(name: str) -> None:
    """Another optimizer over the same model, as in a notebook, would never see them."""
    model = model_for(name)
    optimizer = made(name, model, lr=0.1)
    step(model, optimizer, 0)
    del optimizer
    before = weights(model)
    backward(model, 1)
    assert all(weight.grad is not None for weight in model.parameters())
    assert all(map(torch.equal, before, weights(model)))


@pytest.mark.parametrize("name", KINDS)
def test_a_list_of_parameters_is_taken_or_refused_with_what_to_give(name: str) -> None:
    """What cannot be told from a list is not guessed."""
    model = model_for(name)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    if name in MATRICES:
        with pytest.raises(GymError, match=f"{name} is for matrices inside a model") as caught:
            made(name, trained)
        assert f"{name}(model" in caught.value.problems[0].fix
        with pytest.raises(GymError, match="cannot tell them from embeddings"):
            made(name, model.named_parameters())
        made(name, [weight for weight in trained if weight.dim() == 2])  # chosen by hand, as for torch's Muon
    elif name in ADAPTERS | {"BAdam", "LISA"}:
        with pytest.raises(GymError, match="names of parameters") as caught:
            made(name, trained)
        assert "give the model" in caught.value.problems[0].fix
    else:
        made(name, trained)


def test_of_a_model_embeddings_head_and_vectors_are_adamws() -> None:
    model = tiny()
    optimizer = gym_optim.Muon(model, lr=0.01, weight_decay=0.5)
    roles = {group["role"]: group for group in optimizer.param_groups}
    assert not roles["embedding"]["own"] and not roles["vector"]["own"] and roles["matrix"]["own"]
    assert roles["vector"]["weight_decay"] == 0 and roles["matrix"]["weight_decay"] == 0.5


NO_PAIRS = ((0.9,), 0.9, None, (0.9, 0.9, 0.9), "ab")
WRONG = {
    "lr": (-1.0, float("nan"), float("inf"), "x"),
    "betas": ((2.0, 0.9), (0.9, 1.0), (-0.1, 0.9), *NO_PAIRS),
    "momentum": (-0.1, 1.0),
    "eps": (-1.0, float("nan")),
    "d": (0.0,),
    "beta2_decay": (0.5,),
    **dict.fromkeys(
        ("rank", *INTERVALS, "min_8bit_size", "activated_layers", "queue_size", "max_precond_dim"), (0, -1)
    ),
    **dict.fromkeys(("scale", "lr_ratio", "lr_embedding", "delta", "scaling"), (-1.0, 0.0)),
    **dict.fromkeys(("weight_decay", "power", "start_block", "seed"), (-1,)),
    **dict.fromkeys(("cos_threshold", "shampoo_beta"), (-0.1, 1.5)),
    **dict.fromkeys(("switch_mode", "proj_type", "scale_type"), ("sideways",)),
}


FLAGS = {"target_modules", "nesterov", "scale_parameter", "include_embedding", "include_lm_head"}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_out_of_range_is_refused(name: str) -> None:
    model = model_for(name)
    known = arguments(name) - FLAGS
    assert known <= WRONG.keys(), "every option is tried"
    for option in known:
        factored = option == "eps" and name in ("Adafactor", "adalomo")
        for value in ((-1.0, 1e-3), *NO_PAIRS) if factored else WRONG[option]:
            with pytest.raises(ValueError, match="Invalid"):
                made(name, model, **{option: value})


def test_a_group_is_held_to_the_ranges_too() -> None:
    one, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    optimizer = gym_optim.Lion([one])
    for wrong in ({"lr": -1.0}, {"betas": (0.9, 2.0)}, {"weight_decay": -1.0}):
        with pytest.raises(ValueError, match="Invalid"):
            optimizer.add_param_group({"params": [other], **wrong})


@pytest.mark.parametrize("name", [name for name in KINDS if name != "lora_plus"])
def test_groups_may_come_later(name: str) -> None:
    """They train as they do where they were there from the start; `lora_plus` returns an AdamW, whose groups have their rates."""
    found = []
    for late in (False, True):
        model = model_for(name)
        groups = parameter_groups(model)
        first, second = (
            [{**group, "params": part} for group in groups if (part := [it for it in group["params"] if keep(it[0])])]
            for keep in (lambda path: "layers.1." not in path, lambda path: "layers.1." in path)
        )
        optimizer = made(name, first if late else first + second, lr=0.01)
        for group in second if late else ():
            optimizer.add_param_group(group)
        for number in range(5):
            step(model, optimizer, number)
        found.append(weights(model))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_in_bf16_it_steps_as_in_fp32_and_goes_on_from_a_state(name: str) -> None:
    """Weights and gradients are the same bf16 numbers; the one rounds its weights after each step, the other keeps them."""
    halved, exact = model_for(name, torch.bfloat16), model_for(name).to(torch.bfloat16).float()
    one, other = made(name, halved, lr=0.01), made(name, exact, lr=0.01)
    for number in range(6):
        if number == 3:  # a new optimizer, with the state of the old one
            saved = deepcopy(one.state_dict())
            halved = deepcopy(halved)
            one = made(name, halved, lr=0.01)
            one.load_state_dict(saved)
        for place, (weight, twin) in enumerate(zip(halved.parameters(), exact.parameters(), strict=True)):
            if weight.requires_grad:
                twin.data.copy_(weight.detach())
                generator = torch.Generator().manual_seed(1000 * number + place)
                noise = torch.randn(weight.shape, generator=generator).bfloat16()
                weight.grad, twin.grad = noise, noise.float()
        one.step()
        other.step()
        for weight, twin in zip(halved.parameters(), exact.parameters(), strict=True):
            assert torch.equal(weight, twin.bfloat16())
    dtypes = {value.dtype for state in one.state.values() for value in state.values() if torch.is_tensor(value)}
    assert dtypes <= {torch.float32, torch.uint8}


@pytest.mark.parametrize("name", KINDS)
def test_it_goes_on_in_a_wider_dtype_and_back(name: str) -> None:
    model = model_for(name)
    optimizer = made(name, model, lr=0.01)
    for number, dtype in enumerate((torch.float32, torch.float64, torch.float32)):
        saved, model = optimizer.state_dict(), deepcopy(model).to(dtype)
        optimizer = made(name, model, lr=0.01)
        optimizer.load_state_dict(saved)
        before = weights(model)
        step(model, optimizer, number)
        assert not all(map(torch.equal, before, weights(model)))
        kept = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
        assert {value.dtype for value in kept if torch.is_tensor(value)} <= {dtype, torch.uint8}


def test_a_second_moment_decays_where_bf16_could_not() -> None:
    """Gradients of 1 and then of .01: in bf16 a thousandth less of a number is the same number."""
    weight = nn.Parameter(torch.zeros(64, 64, dtype=torch.bfloat16))
    optimizer = gym_optim.AdamW([weight], lr=0.0)
    for gradient in [1.0] + [0.01] * 999:
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
    expected = 0.001 * 0.999**999 + 1e-4 * (1 - 0.999**999)
    torch.testing.assert_close(optimizer.state[weight]["exp_avg_sq"].mean().item(), expected, rtol=0.01, atol=0.0)


def test_an_average_survives_a_schedule_of_beta() -> None:
    """y lies between z and x by the newest beta, so the average is the same whatever a schedule makes of it."""
    found = []
    for cycled in (False, True):
        weight = nn.Parameter(torch.linspace(-1, 1, 5, dtype=torch.float64))
        optimizer = gym_optim.ScheduleFreeAdamW([weight], lr=0.01)
        for number in range(5):
            weight.grad = torch.sin(torch.arange(5, dtype=torch.float64) + number)
            if cycled:
                optimizer.param_groups[0]["betas"] = (0.85 + 0.02 * number, 0.999)
            optimizer.step()
        with optimizer.averaged():
            found.append(weight.detach().clone())
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)

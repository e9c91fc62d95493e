"""LoRA+ against peft, and LoRA-Pro against least squares and its algorithm."""

from __future__ import annotations

import pytest
import torch
from optim_bench import close, random, tiny, weight
from peft import LoraConfig, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from torch import Tensor

from gym_core import GymError
from gym_optim import LoRAPro, lora_plus, parameter_groups
from gym_optim.optimizers.lora_pro import closest_directions
from gym_testkit.architectures import build

A, B, FULL = (3, 7), (5, 3), (5, 7)


def pair(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    return random(*A, seed=seed), random(*B, seed=seed + 1), random(*FULL, seed=seed + 2)


@pytest.mark.proves("lora_pro")
@pytest.mark.parametrize("scaling", [1.0, 2.0])
def test_the_equivalent_gradient_is_the_projection_onto_what_a_and_b_can_do(scaling: float) -> None:
    a, b, full = pair()
    toward_a, toward_b = closest_directions(a, b, scaling * b.T @ full, scaling * full @ a.T, scaling, 1e-14)
    found = scaling * (b @ toward_a + toward_b @ a)
    moves_a = torch.stack([(b @ unit.view(A)).view(-1) for unit in torch.eye(21, dtype=torch.float64)], dim=1)
    moves_b = torch.stack([(unit.view(B) @ a).view(-1) for unit in torch.eye(15, dtype=torch.float64)], dim=1)
    moves = torch.cat([moves_a, moves_b], dim=1)  # [35, 36]
    best = torch.linalg.lstsq(moves, full.view(-1, 1), driver="gelsd").solution
    close(found, (moves @ best).view(FULL), 1e-5)


@pytest.mark.proves("lora_pro")
def test_the_free_part_does_not_move_the_product_and_keeps_closest_to_the_gradients() -> None:
    a, b, full = pair(5)
    grad_a, grad_b = b.T @ full, full @ a.T

    def far(free: Tensor | None) -> tuple[Tensor, float]:
        toward_a, toward_b = closest_directions(a, b, grad_a, grad_b, 1.0, 1e-14, free)
        return b @ toward_a + toward_b @ a, float(
            (toward_a - grad_a).square().sum() + (toward_b - grad_b).square().sum()
        )

    best_move, least = far(None)
    for seed in range(5):
        move, distance = far(random(3, 3, seed=seed))
        close(move, best_move, 1e-8)
        assert distance >= least


@pytest.mark.proves("lora_pro")
def test_the_chosen_free_part_solves_the_equation_of_the_paper() -> None:
    a, b, full = pair(9)
    grad_a, grad_b, delta = b.T @ full, full @ a.T, 1e-14
    toward_a, _ = closest_directions(a, b, grad_a, grad_b, 1.0, delta)
    plain, _ = closest_directions(a, b, grad_a, grad_b, 1.0, delta, torch.zeros(3, 3, dtype=torch.float64))
    free = (toward_a - plain) @ torch.linalg.pinv(a)
    close(b.T @ b @ free + free @ a @ a.T, -torch.linalg.solve(b.T @ b, grad_a) @ a.T, 1e-8)


@pytest.mark.proves("lora_pro")
def test_lora_pro_is_its_algorithm() -> None:
    a, b = weight(*A), weight(*B, seed=1)
    left, right = a.detach().clone(), b.detach().clone()
    named = [("q.lora_A.default.weight", a), ("q.lora_B.default.weight", b)]
    optimizer = LoRAPro(named, lr=0.01, scaling=2.0, weight_decay=0.1)
    mean, square, eye = torch.zeros(FULL).double(), torch.zeros(FULL).double(), torch.eye(3).double()
    for step in range(1, 5):
        full = random(*FULL, seed=step)
        grad_a, grad_b = 2 * right.T @ full, 2 * full @ left.T
        a.grad, b.grad = grad_a.clone(), grad_b.clone()
        optimizer.step()
        inner, outer = torch.linalg.inv(right.T @ right + 1e-8 * eye), torch.linalg.inv(left @ left.T + 1e-8 * eye)
        outside = torch.eye(5).double() - right @ inner @ right.T
        whole = 2 * (right @ (inner @ grad_a / 4) + outside @ grad_b @ outer / 4 @ left)
        mean, square = 0.9 * mean + 0.1 * whole, 0.999 * square + 0.001 * whole**2
        adam = mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        grad_a, grad_b = 2 * right.T @ adam, 2 * adam @ left.T
        system = torch.kron(right.T @ right + 1e-8 * eye, eye) + torch.kron(eye, left @ left.T + 1e-8 * eye)
        free = torch.linalg.solve(system, (-inner @ grad_a @ left.T / 4).reshape(-1)).view(3, 3)
        move_a, move_b = inner @ grad_a / 4 + free @ left, outside @ grad_b @ outer / 4 - right @ free
        left, right = 0.999 * left - 0.01 * move_a, 0.999 * right - 0.01 * move_b
    close(a.detach(), left, 1e-7)
    close(b.detach(), right, 1e-7)


def test_lora_pro_moves_the_product_as_far_whatever_it_is_multiplied_by() -> None:
    """The scaling is the adapter's: a run with alpha = rank and one with alpha = 2 rank learn at the same rate."""

    def moved(scaling: float, given: float | None) -> Tensor:
        a, b = weight(*A), weight(*B, seed=1)
        before, full = scaling * (b @ a).detach(), random(*FULL)
        named = [("q.lora_A.x.weight", a), ("q.lora_B.x.weight", b)]
        optimizer = LoRAPro([{"params": named, "scaling": scaling}], lr=1e-6, scaling=given)
        a.grad, b.grad = scaling * b.detach().T @ full, scaling * full @ a.detach().T
        optimizer.step()
        return scaling * (b @ a).detach() - before

    close(moved(1.0, None) / 1e-6, moved(4.0, None) / 1e-6, 1e-4)
    close(moved(4.0, 1.0) / 1e-6, 4 * moved(4.0, None) / 1e-6, 1e-3)


def test_lora_pro_refuses_pairs_with_a_third_factor() -> None:
    named = [(f"q.lora_{part}.x", weight(3, 3)) for part in "ABE"]
    with pytest.raises(GymError, match="no LoRA adapter"):
        LoRAPro(named)


def test_lora_pro_starts_at_a_b_of_zero() -> None:
    a, b = weight(*A), torch.nn.Parameter(torch.zeros(B, dtype=torch.float64))
    optimizer = LoRAPro([("q.lora_A.x.weight", a), ("q.lora_B.x.weight", b)], lr=0.01, scaling=2.0)
    for step in range(5):
        full = random(*FULL, seed=step)
        a.grad, b.grad = 2 * b.detach().T @ full, 2 * full @ a.detach().T
        optimizer.step()
        assert a.isfinite().all() and b.isfinite().all()
    assert b.detach().abs().max() > 0


@pytest.mark.proves("lora_plus")
@pytest.mark.parametrize("dora", [False, True])
def test_the_rates_of_lora_plus_are_those_of_peft(dora: bool) -> None:
    modules = ["q_proj", "down_proj", "embed_tokens"]
    model = get_peft_model(tiny(), LoraConfig(target_modules=modules, r=2, use_dora=dora))
    options = {"loraplus_lr_ratio": 8.0, "loraplus_lr_embedding": 1e-5}
    theirs = create_loraplus_optimizer(model, torch.optim.AdamW, lr=1e-3, **options)
    ours = lora_plus(parameter_groups(model), lr=1e-3, lr_ratio=8.0, lr_embedding=1e-5)

    def rates(optimizer: torch.optim.Optimizer) -> dict[Tensor, float]:
        return {weight: group["lr"] for group in optimizer.param_groups for weight in group["params"]}

    assert rates(ours) == rates(theirs)
    assert len(set(rates(ours).values())) == 3


def test_a_group_of_pairs_may_have_a_rate_of_its_own() -> None:
    a, b = [("q.lora_A.x.weight", weight(*A))], [("q.lora_B.x.weight", weight(*B))]
    groups = lora_plus([{"params": a, "lr": 1e-5}, {"params": b}], lr=1e-3, lr_ratio=8.0).param_groups
    assert [group["lr"] for group in groups] == [1e-5, 8e-3]
    with pytest.raises(GymError, match=r"the B of q\.lora_A\.x\.weight is in another group"):
        LoRAPro([{"params": a, "lr": 1e-5}, {"params": b}], scaling=1.0)


def test_lora_pro_refuses_a_pair_whose_scaling_nobody_says() -> None:
    pair_ = [("q.lora_A.x.weight", weight(*A)), ("q.lora_B.x.weight", weight(*B))]
    with pytest.raises(GymError, match="with its scaling"):
        LoRAPro(pair_)
    assert LoRAPro(pair_, scaling=0.5).param_groups[0]["scaling"] == 0.5


def test_lora_pro_refuses_the_experts_of_a_mixture() -> None:
    """A lies in the order of experts and then ranks, B in that of ranks and then experts: their product means nothing."""
    tensors = ["experts.gate_up_proj", "experts.down_proj"]
    model = get_peft_model(build("qwen3_moe"), LoraConfig(r=2, target_modules=[], target_parameters=tensors))
    assert all("scaling" not in group for group in parameter_groups(model))
    with pytest.raises(GymError, match="finds no LoRA adapter of one matrix"):
        LoRAPro(model)
    with pytest.raises(GymError, match="in another group"):
        LoRAPro(model, scaling=2.0)
    assert lora_plus(model).param_groups


@pytest.mark.proves("lora_plus")
@pytest.mark.parametrize("kind", [lora_plus, LoRAPro])
def test_without_an_adapter_they_refuse(kind: type) -> None:
    with pytest.raises(GymError, match="no LoRA adapter"):
        kind(parameter_groups(tiny()))
    with pytest.raises(GymError, match="names of parameters"):
        kind(tiny().parameters())

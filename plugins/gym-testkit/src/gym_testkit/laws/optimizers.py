"""Laws of optimizers, asked of plain tensors: an optimizer is usable in any other loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor

from gym_optim.kinds import Optimizer
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_testkit.optimizer_problems import (
    RATES,
    SHAPES,
    backward,
    best_ratio,
    built,
    drawn,
    gradients_are,
    groups_of,
    parameters,
    refused,
    take_steps,
    tensors_in,
    variants,
)

laws = laws_of("optimizers", "optimizer")


def _general(brought: Brought) -> bool:
    return cast(type[Optimizer], brought.cls).general


@laws("converges on a parabola", _general)
def parabola(brought: Brought, bench: Bench) -> None:
    """Least squares with curvatures from 0.1 to 1: the loss falls to a thousandth."""
    goals = [drawn(shape, seed) for seed, shape in enumerate(SHAPES)]
    curvatures = [torch.linspace(0.1, 1.0, goal.numel()).view_as(goal) for goal in goals]

    def loss(points: Sequence[Tensor]) -> Tensor:
        terms = zip(points, goals, curvatures, strict=True)
        return torch.stack([(curvature * (point - goal) ** 2).sum() for point, goal, curvature in terms]).sum()

    ratio = best_ratio(brought, loss, [torch.zeros(shape) for shape in SHAPES], steps=300)
    assert ratio < 1e-3, f"the loss only fell to {ratio:.3g} of where it began, at the best of the rates {RATES}"


@laws("converges on Rosenbrock's valley", _general)
def rosenbrock(brought: Brought, bench: Bench) -> None:
    """Six copies of the curved valley, from different starts: the loss falls to a twentieth."""

    def loss(points: Sequence[Tensor]) -> Tensor:
        across, along = points[0]  # [6], [6]
        return ((1 - across) ** 2 + 100 * (along - across**2) ** 2).mean()

    start = torch.stack([torch.linspace(-0.6, -0.4, 6), torch.linspace(0.8, 1.2, 6)])
    ratio = best_ratio(brought, loss, [start], steps=1000)
    assert ratio < 0.05, f"the loss only fell to {ratio:.3g} of where it began, at the best of the rates {RATES}"


@laws("a learning rate of 0 changes nothing", _general)
def zero_rate(brought: Brought, bench: Bench) -> None:
    """Three steps with gradients leave every parameter as it was, bit for bit."""
    points = parameters([drawn(shape, 7) for shape in SHAPES])
    before = [point.detach().clone() for point in points]
    take_steps(built(brought, points, 0.0), points, range(3))
    assert all(torch.equal(*pair) for pair in zip(before, points, strict=True))


@laws("state round-trips bit for bit", _general)
def round_trips(brought: Brought, bench: Bench) -> None:
    """Five steps, state into a new optimizer, five more: the same parameters as ten steps without the change."""
    points = parameters([drawn(shape, 7) for shape in SHAPES])
    optimizer = built(brought, points, 0.01)
    take_steps(optimizer, points, range(5))
    others = parameters([point.detach().clone() for point in points])
    successor = built(brought, others, 0.01)
    successor.load_state_dict(deepcopy(optimizer.state_dict()))
    take_steps(optimizer, points, range(5, 10))
    take_steps(successor, others, range(5, 10))
    assert all(torch.equal(*pair) for pair in zip(points, others, strict=True))


@laws("declared state bytes are the measured bytes", _general)
def state_bytes(brought: Brought, bench: Bench) -> None:
    """After one step, the tensors of the state take what the configuration says; scalars do not count."""
    points = parameters([drawn(shape, 7) for shape in ((64, 48), (33, 17), (3, 6, 5), (5,))])
    optimizer = built(brought, points, 0.01)
    take_steps(optimizer, points, range(1))
    measured = sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(optimizer.state_dict()["state"]))
    shapes = [
        {**group, "params": [(name, tuple(point.shape)) for name, point in group["params"]]}
        for group in groups_of(points)
    ]
    assert cast(Optimizer, brought.sample()).declared_bytes(shapes) == measured


@laws("an expert of a stack moves as a matrix of its own", _general)
def stacks(brought: Brought, bench: Bench) -> None:
    """A tensor [experts, rows, columns] goes where as many matrices with the same gradients go.

    They are square: singular vectors of nothing, which others have, are whatever rounding makes them.
    """
    stack = parameters([drawn((3, 5, 5), 7)])
    alone = parameters([expert.clone() for expert in stack[0].detach()])
    together, apart = built(brought, stack, 0.01), built(brought, alone, 0.01)
    for number in range(6):
        stack[0].grad = drawn((3, 5, 5), number)
        for point, gradient in zip(alone, stack[0].grad.clone(), strict=True):
            point.grad = gradient
        together.step()
        apart.step()
    found, expected = stack[0].detach(), torch.stack([point.detach() for point in alone])
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5), f"they end {(found - expected).abs().max():.3g} apart"


@laws("in bf16 it follows its fp32 self", _general)
def halves(brought: Brought, bench: Bench) -> None:
    """A step from the same bf16 weights and gradients leads to the same place, rounded once, and to the same state.

    Gradients fall to a hundredth, so that means that cannot move in bf16 are seen. In fp16, everything stays finite.
    """
    shapes = ((64, 80), (3, 6, 4), (4,))
    halved = parameters([drawn(shape, 7).bfloat16() for shape in shapes])
    exact = parameters([point.detach().float() for point in halved])
    one, other = built(brought, halved, 0.01), built(brought, exact, 0.01)
    for number in range(40):
        for place, (point, twin) in enumerate(zip(halved, exact, strict=True)):
            twin.data.copy_(point.detach())
            point.grad = ((1.0 if number < 4 else 0.01) * drawn(tuple(point.shape), 100 * number + place)).bfloat16()
            twin.grad = point.grad.float()
        one.step()
        other.step()
        for point, twin in zip(halved, exact, strict=True):
            off = (point.detach().float() - twin.detach()).abs()
            assert (off <= 2**-8 * twin.detach().abs() + 1e-6).all(), f"step {number} ends {off.max():.3g} off"
    for value, like in zip(*(tensors_in(each.state_dict()["state"]) for each in (one, other)), strict=True):
        assert value.dtype == like.dtype, f"a state is {value.dtype}, which is {like.dtype} for fp32 parameters"
        if like.is_floating_point():
            torch.testing.assert_close(value, like, rtol=0.01, atol=0.01 * float(like.abs().max()))
    points = parameters([drawn(shape, 7).half() for shape in shapes])
    optimizer = built(brought, points, 0.01)
    for number in range(4):
        for place, point in enumerate(points):
            point.grad = (1e-3 * drawn(tuple(point.shape), 100 * number + place)).half()
        optimizer.step()
    assert all(point.isfinite().all() for point in points), "in fp16 it does not stay finite"


@laws("schedules of torch drive it", _general)
def schedules(brought: Brought, bench: Bench) -> None:
    """LambdaLR at 0 holds it still, OneCycleLR brings it to an end, and ReduceLROnPlateau lowers its rate."""
    points = parameters([drawn(shape, 7) for shape in SHAPES])
    optimizer = built(brought, points, 0.01)
    cycled = {"betas", "momentum"} & optimizer.defaults.keys()
    before = [point.detach().clone() for point in points]
    still = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    take_steps(optimizer, points, range(2), still)
    assert all(torch.equal(*pair) for pair in zip(before, points, strict=True)), "it moves at a rate of 0"
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=6, cycle_momentum=bool(cycled))
    take_steps(optimizer, points, range(2, 7), cycle)
    assert all(point.isfinite().all() for point in points) and not torch.equal(before[0], points[0])
    top = max(group["lr"] for group in optimizer.param_groups)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for _ in range(3):
        plateau.step(1.0)
    assert max(group["lr"] for group in optimizer.param_groups) < top


@laws("what it declares elementwise trains the same in shards", _general)
def elementwise(brought: Brought, bench: Bench) -> None:
    """Steps of matrices cut into rows are the cuts of the steps of whole ones, and it does not matter where a number stands.

    Matrices are long enough for rules that leave small parameters to another.
    """
    for config in variants(brought):
        if not config.elementwise():
            continue
        shape, places = (128, 48), torch.randperm(128 * 48, generator=torch.Generator().manual_seed(5))
        value = drawn(shape, 7)
        whole, moved = parameters([value.clone(), value.flatten()[places].view(shape)])
        parts = parameters([part.clone() for part in value.chunk(4)])
        sets = [[whole], [moved], parts]
        optimizers = [config.build(parameters=groups_of(points), learning_rate=0.01) for points in sets]
        for number in range(4):
            gradient = drawn(shape, number) * torch.linspace(0.1, 10.0, 128)[:, None]
            given = [[gradient], [gradient.flatten()[places].view(shape)], gradient.chunk(4)]
            for points, gradients, optimizer in zip(sets, given, optimizers, strict=True):
                backward(points, gradients)
                optimizer.step()
                optimizer.zero_grad()
        goal = whole.detach()
        torch.testing.assert_close(torch.cat([part.detach() for part in parts]), goal, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(moved.detach().flatten(), goal.flatten()[places], rtol=1e-5, atol=1e-6)


@laws("every parameter is in a group", _general)
def every_parameter(brought: Brought, bench: Bench) -> None:
    """What it builds holds each parameter that it is given, once, and no other: one that is left out would never train."""
    for config in variants(brought):
        points = parameters([drawn((6, 5), seed) for seed in range(6)])
        optimizer = config.build(parameters=groups_of(points, layers=True), learning_rate=0.01)
        held = [id(point) for group in optimizer.param_groups for point in group["params"]]
        assert sorted(held) == sorted(map(id, points)), f"given {len(points)} parameters, it holds {len(held)}"


@laws("gradients stay as declared", _general)
def gradients_stay(brought: Brought, bench: Bench) -> None:
    """From the backward pass to the end of `step` every gradient is whole where that is declared, and else as many bytes."""
    for config in variants(brought):
        points = parameters([drawn((6, 5), seed) for seed in range(6)])
        optimizer, most, all_stay = config.build(parameters=groups_of(points, layers=True), learning_rate=0.01), 0, True
        for number in range(4):
            gradients = [drawn((6, 5), 10 * number + place) for place in range(6)]
            backward(points, gradients)
            most = max(most, sum(point.grad.nbytes for point in points if point.grad is not None))
            all_stay &= gradients_are(points, gradients)
            optimizer.step()
            all_stay &= gradients_are(points, gradients)
            optimizer.zero_grad()
        assert config.keeps_gradients() == all_stay, f"declared {config.keeps_gradients()}, found {all_stay}"
        if not all_stay:
            shapes = [{"params": [(f"layers.{place}.weight", (6, 5)) for place in range(6)], "role": "matrix"}]
            assert config.gradient_bytes(shapes) == most, (
                f"declared {config.gradient_bytes(shapes)} bytes, found {most}"
            )


@laws("updates in the backward pass are declared", _general)
def in_backward(brought: Brought, bench: Bench) -> None:
    """Parameters move between the backward pass and `step` where that is declared, and nowhere else."""
    for config in variants(brought):
        points = parameters([drawn(shape, 7) for shape in SHAPES])
        before = [point.detach().clone() for point in points]
        optimizer = config.build(parameters=groups_of(points), learning_rate=0.01)
        backward(points, [drawn(shape, 3) for shape in SHAPES])
        moved = not all(torch.equal(*pair) for pair in zip(before, points, strict=True))
        optimizer.step()
        assert config.updates_in_backward() == moved, f"declared {config.updates_in_backward()}, found {moved}"


@laws("the weights to evaluate are declared", _general)
def evaluation(brought: Brought, bench: Bench) -> None:
    """`evaluation_weights` changes parameters where `averages` says so, and leaves them as they were, bit for bit."""
    for config in variants(brought):
        points = parameters([drawn(shape, 7) for shape in SHAPES])
        optimizer = config.build(parameters=groups_of(points), learning_rate=0.01)
        take_steps(optimizer, points, range(5))
        before = [point.detach().clone() for point in points]
        with config.evaluation_weights(optimizer):
            others = not all(torch.equal(*pair) for pair in zip(before, points, strict=True))
        assert config.averages() == others, f"declared {config.averages()}, found {others}"
        assert all(torch.equal(*pair) for pair in zip(before, points, strict=True)), (
            "they are not what they were before"
        )


#: What no option of such a name may be.
WRONG: Mapping[str, Sequence[float]] = {
    **dict.fromkeys(("beta1", "beta2", "momentum"), (-0.1, 1.0, 2.0)),
    **dict.fromkeys(("weight_decay", "epsilon", "eps"), (-1.0,)),
    **dict.fromkeys(("rank", "interval", "update_proj_gap", "interval_steps", "switch_interval"), (-1, 0)),
}


@laws("options out of range are refused", _general)
def ranges(brought: Brought, bench: Bench) -> None:
    """By the options, and by what is built of them for whoever makes it by hand; a rate below zero or no number by the latter."""
    options = cast(Optimizer, brought.sample())
    groups = groups_of(parameters([drawn(shape, 7) for shape in SHAPES]))
    for rate in (-1.0, float("nan")):
        assert refused(options.build, parameters=groups, learning_rate=rate), f"a learning rate of {rate} is accepted"
    for name in WRONG.keys() & brought.cls.model_fields.keys():
        for value in WRONG[name]:
            assert refused(brought.cls, **options.model_dump() | {name: value}), f"{name}: {value} is accepted"
            odd = options.model_copy(update={name: value})
            built = not refused(odd.build, parameters=groups, learning_rate=0.01)
            assert not built, f"{name}: {value} is refused in a recipe alone, and not by what is built"

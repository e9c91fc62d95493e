"""Optimizers of one moment or none, against their papers' formulas in float64."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from optim_bench import adamw, close, follow, gradients, random, weight
from torch import nn

from gym_core import GymError
from gym_optim import LISA, Adafactor, AdamW8bit, BAdam, InBackward, Lion, ScheduleFreeAdamW, adalomo, lomo
from gym_optim.config import SGD


@pytest.mark.proves("lion")
def test_lion_is_its_formula() -> None:
    grads, parameter = gradients(3, 4, steps=5), weight(3, 4)
    expected, momentum = parameter.detach().clone(), torch.zeros(3, 4, dtype=torch.float64)
    for gradient in grads:
        direction = (0.9 * momentum + 0.1 * gradient).sign()
        expected = expected - 0.01 * (direction + 0.1 * expected)
        momentum = 0.99 * momentum + 0.01 * gradient
    close(follow(Lion([parameter], lr=0.01, weight_decay=0.1), parameter, grads), expected)


def test_sgd_looks_ahead_of_a_momentum_alone() -> None:
    with pytest.raises(ValueError, match="no momentum to look ahead of"):
        SGD(nesterov=True)


@pytest.mark.proves("sgd")
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_is_its_formula(momentum: float, nesterov: bool) -> None:
    grads, parameter = gradients(3, 4, steps=5), weight(3, 4)
    expected, moment = parameter.detach().clone(), torch.zeros(3, 4, dtype=torch.float64)
    for gradient in grads:
        whole = gradient + 0.1 * expected
        moment = momentum * moment + whole
        expected = expected - 0.01 * (whole + momentum * moment if nesterov else moment)
    options = SGD(momentum=momentum, nesterov=nesterov, weight_decay=0.1)
    close(follow(options.build(parameters=[parameter], learning_rate=0.01), parameter, grads), expected)


def adafactor(start: torch.Tensor, grads: list[torch.Tensor], rate: float, relative: bool) -> torch.Tensor:
    rows, columns, value = torch.zeros(start.shape[0]), torch.zeros(start.shape[1]), start.clone()
    rows, columns = rows.double(), columns.double()
    for step, gradient in enumerate(grads, start=1):
        beta = 1 - step**-0.8
        rows = beta * rows + (1 - beta) * (gradient**2 + 1e-30).mean(1)
        columns = beta * columns + (1 - beta) * (gradient**2 + 1e-30).mean(0)
        update = gradient / (torch.outer(rows, columns) / rows.mean()).sqrt()
        update = update / max(1.0, float((update**2).mean().sqrt()))
        size = max(1e-3, float((value**2).mean().sqrt())) if relative else 1.0
        value = (1 - 0.1 * rate) * value - rate * size * update
    return value


@pytest.mark.proves("adafactor", "adalomo")
@pytest.mark.parametrize("relative", [True, False])
def test_adafactor_is_its_formula(relative: bool) -> None:
    grads, parameter = gradients(5, 3, steps=6), weight(5, 3)
    expected = adafactor(parameter.detach(), grads, 0.05, relative)
    close(
        follow(Adafactor([parameter], lr=0.05, scale_parameter=relative, weight_decay=0.1), parameter, grads), expected
    )


@pytest.mark.proves("adafactor")
@pytest.mark.parametrize("shape", [(5, 3), (7,), (2, 3, 4, 3)])
def test_adafactor_is_torchs_where_that_does_not_cap_the_rate(shape: tuple[int, ...]) -> None:
    grads, ours, theirs = gradients(*shape, steps=4), weight(*shape), weight(*shape)
    other = torch.optim.Adafactor([theirs], lr=0.1, eps=(1e-30, 1e-3))  # min(lr, 1 / sqrt(t)) is lr
    found = follow(Adafactor([ours], lr=0.1, scale_parameter=True), ours, grads)
    close(found, follow(other, theirs, grads), 1e-6)


@pytest.mark.proves("adalomo")
def test_adalomo_is_adafactor_relative_to_the_weights() -> None:
    grads, one, other = gradients(5, 3, steps=4), weight(5, 3), weight(5, 3)
    expected = follow(Adafactor([other], lr=0.05, scale_parameter=True), other, grads)
    optimizer = adalomo([one], lr=0.05)
    for gradient in grads:
        (one * gradient).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    close(one.detach(), expected, 1e-12)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def trained(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> list[torch.Tensor]:
    for step in range(steps):
        net(random(10, 6, seed=step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in net.parameters()]


@pytest.mark.proves("adamw")
def test_in_backward_is_the_same_step_and_holds_no_gradient() -> None:
    expected = trained(one := model(), torch.optim.AdamW(one.parameters(), lr=0.01))
    net = model()
    optimizer = InBackward(torch.optim.AdamW(net.parameters(), lr=0.01))
    held: list[int] = []
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _: held.append(sum(other.grad is not None for other in net.parameters()))
        )
    found = trained(net, optimizer)
    for left, right in zip(found, expected, strict=True):
        close(left, right, 1e-12)
    assert held and not any(held), "every gradient is gone by the time the next hook sees it"


@pytest.mark.proves("lomo")
def test_lomo_is_gradient_descent_without_state() -> None:
    expected = trained(one := model(), torch.optim.SGD(one.parameters(), lr=0.1))
    optimizer = lomo((net := model()).parameters(), lr=0.1)
    for left, right in zip(trained(net, optimizer), expected, strict=True):
        assert torch.equal(left, right)
    assert all(not state or state == {"momentum_buffer": None} for state in optimizer.state.values())


@pytest.mark.proves("lomo")
def test_in_backward_refuses_a_second_pass() -> None:
    net = model()
    optimizer = lomo(net.parameters(), lr=0.1)
    net(random(4, 6)).sum().backward()
    with pytest.raises(GymError, match="cannot wait for a second backward pass"):
        net(random(4, 6)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", [ScheduleFreeAdamW, LISA, BAdam])
def test_what_looks_at_several_parameters_cannot_be_in_the_backward_pass(kind: type) -> None:
    with pytest.raises(GymError, match=f"{kind.__name__} looks at more than one parameter"):
        InBackward(kind(model().named_parameters()))


def test_in_backward_goes_on_from_a_state() -> None:
    one, other = model(), model()
    first = InBackward(torch.optim.AdamW(one.parameters(), lr=0.01))
    trained(one, first, 2)
    other.load_state_dict(one.state_dict())
    second = InBackward(torch.optim.AdamW(other.parameters(), lr=0.5))
    second.load_state_dict(deepcopy(first.state_dict()))
    for left, right in zip(trained(one, first, 2), trained(other, second, 2), strict=True):
        assert torch.equal(left, right)


def test_in_backward_codes_stay_bytes_when_a_state_is_loaded() -> None:
    def train(seed: int, optimizer: InBackward, net: nn.Module) -> None:
        net(random(10, 6, seed=seed)).square().mean().backward()
        optimizer.step()

    one, other = model(), model()
    first = InBackward(AdamW8bit(one.parameters(), lr=0.01, min_8bit_size=1))
    train(0, first, one)
    second = InBackward(AdamW8bit(other.parameters(), lr=0.01, min_8bit_size=1))
    second.load_state_dict(deepcopy(first.state_dict()))
    codes = [value for state in second.state.values() for key, value in state.items() if key.endswith("_codes")]
    assert codes and all(value.dtype == torch.uint8 for value in codes)


@pytest.mark.proves("sgd")
def test_sgd_has_state_only_with_momentum() -> None:
    groups = [{"params": [("a", (4, 3))]}]
    assert SGD().declared_bytes(groups) == 0
    assert SGD(momentum=0.9).declared_bytes(groups) == 48


def test_adamw_of_the_helper_is_adamw() -> None:
    start, grad = random(3), random(3, seed=1)
    close(adamw(start, [grad], 0.1), start - 0.1 * grad / (grad.abs() + 1e-8))

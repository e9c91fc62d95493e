"""Small problems that the laws of optimizers ask: parameters, gradients and steps on plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from gym_core import GymError
from gym_optim.kinds import Optimizer
from gym_testkit.distribution import Brought

#: Peak learning rates that are tried: a law does not ask which one suits.
RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
SHAPES = ((6, 4), (4,))


def refused(make: Callable[..., object], **given: Any) -> bool:
    """Whether this raises what a wrong option raises."""
    try:
        make(**given)
    except (ValueError, GymError):
        return True
    return False


def built(brought: Brought, points: Sequence[Tensor], rate: float) -> torch.optim.Optimizer:
    """Return the optimizer over these parameters."""
    return cast(torch.optim.Optimizer, brought.sample().build(parameters=groups_of(points), learning_rate=rate))


def variants(brought: Brought) -> Iterator[Optimizer]:
    """Yield the sample, and one with each boolean option flipped where that is allowed: options decide what is declared."""
    sample = cast(Optimizer, brought.sample())
    yield sample
    for name, value in sample:
        flipped = sample.model_copy(update={name: not value})
        groups = groups_of(parameters([drawn(shape, 7) for shape in SHAPES]))
        if isinstance(value, bool) and not refused(flipped.build, parameters=groups, learning_rate=0.01):
            yield flipped


def backward(points: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Go back through something whose gradients are those given."""
    torch.stack([(point * gradient).sum() for point, gradient in zip(points, gradients, strict=True)]).sum().backward()


def gradients_are(points: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
    """Whether every gradient is there, whole."""
    return all(
        point.grad is not None and torch.equal(point.grad, gradient)
        for point, gradient in zip(points, gradients, strict=True)
    )


def groups_of(points: Sequence[Tensor], layers: bool = False) -> list[dict[str, Any]]:
    """Tell an optimizer of matrices and vectors as the trainer does; all in one layer, or each in a layer of its own."""
    named = [
        (f"layers.{number}.weight" if layers else f"layers.0.{number}.weight", point)
        for number, point in enumerate(points)
    ]
    roles = {
        "matrix": [(name, point) for name, point in named if point.dim() >= 2],
        "vector": [(name, point) for name, point in named if point.dim() < 2],
    }
    return [{"params": group, "role": role} for role, group in roles.items() if group]


def best_ratio(
    brought: Brought, loss: Callable[[Sequence[Tensor]], Tensor], start: Sequence[Tensor], steps: int
) -> float:
    """Return the lowest share of the first loss that is left after the steps, at rates that decay to nothing."""
    ends = []
    for rate in RATES:
        points = parameters([point.clone() for point in start])
        optimizer = built(brought, points, rate)
        first = loss(points).item()
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rate * (1 - step / steps)
            optimizer.zero_grad()
            loss(points).backward()
            optimizer.step()
        last = loss(points).item()
        ends.append(last / first if last == last else float("inf"))
    return min(ends)


def take_steps(
    optimizer: torch.optim.Optimizer, points: Sequence[Tensor], numbers: range, schedule: Any = None
) -> None:
    """Take steps whose gradients follow from their numbers."""
    for number in numbers:
        for position, point in enumerate(points):
            point.grad = drawn(tuple(point.shape), 100 * number + position)
        optimizer.step()
        if schedule:
            schedule.step()


def parameters(values: Sequence[Tensor]) -> list[torch.nn.Parameter]:
    """Return parameters that hold these values."""
    return [torch.nn.Parameter(value) for value in values]


def drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return normal values that follow from the seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a state, scalars excepted."""
    if isinstance(value, Tensor) and value.dim() > 0:
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)

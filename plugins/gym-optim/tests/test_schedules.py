"""The shapes of the learning rate."""

from __future__ import annotations

from math import isclose

import pytest

from gym_core import Scheduler
from gym_optim.config import Constant, Cosine, Linear


def shape(scheduler: Scheduler, total: int = 10, warmup: int = 0) -> list[float]:
    factor = scheduler.build(total=total, warmup=warmup)
    return [factor(step) for step in range(total + 1)]


def test_linear_falls_to_zero() -> None:
    assert shape(Linear(), 4) == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_constant_stays() -> None:
    assert shape(Constant(), 3) == [1.0] * 4


def test_cosine_is_half_a_wave_down_to_its_floor() -> None:
    values = shape(Cosine(floor=0.2), 4)
    assert values[0] == 1.0
    assert isclose(values[2], 0.6)
    assert isclose(values[4], 0.2)


@pytest.mark.parametrize("scheduler", [Linear(), Cosine(), Constant()])
def test_warm_up_learns_from_its_first_step(scheduler: Scheduler) -> None:
    assert shape(scheduler, 10, 4)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("scheduler", [Linear(), Cosine(), Constant()])
def test_warm_up_may_take_the_whole_run(scheduler: Scheduler) -> None:
    assert shape(scheduler, 2, 2)[:2] == [0.5, 1.0]

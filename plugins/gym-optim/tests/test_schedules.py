"""The shapes of the learning rate."""

from __future__ import annotations

from math import cos, isclose, pi
from typing import Any

import pytest
import torch

from gym_optim.config import WSD, Constant, Cosine, InverseSqrt, Linear, Polynomial
from gym_optim.kinds import Scheduler

EVERY: list[Scheduler] = [Linear(), Cosine(), Constant(), WSD(), InverseSqrt(), Polynomial(power=2.0)]


def shape(scheduler: Scheduler, total: int = 10, warmup: int = 0) -> list[float]:
    factor = scheduler.build(total=total, warmup=warmup)
    return [factor(step) for step in range(total + 1)]


def test_linear_falls_to_zero() -> None:
    assert shape(Linear(), 4) == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_constant_stays() -> None:
    assert shape(Constant(), 3) == [1.0] * 4


def test_cosine_is_half_a_wave_down_to_its_floor() -> None:
    values = shape(Cosine(min_lr_ratio=0.2), 4)
    assert values[0] == 1.0
    assert isclose(values[2], 0.6)
    assert isclose(values[4], 0.2)


@pytest.mark.parametrize("scheduler", EVERY)
def test_warm_up_learns_from_its_first_step(scheduler: Scheduler) -> None:
    assert shape(scheduler, 10, 4)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("scheduler", EVERY)
def test_warm_up_may_take_the_whole_run(scheduler: Scheduler) -> None:
    assert shape(scheduler, 2, 2)[:2] == [0.5, 1.0]


def test_cosine_restarts_at_the_peak() -> None:
    values = shape(Cosine(num_cycles=2), 8)
    assert values[0] == values[4] == 1.0
    assert isclose(values[2], 0.5) and isclose(values[6], 0.5) and isclose(values[8], 0.0, abs_tol=1e-12)


@pytest.mark.parametrize(("kind", "middle"), [("linear", 0.5), ("cosine", 0.5), ("sqrt", 1 - 0.5**0.5)])
def test_wsd_is_stable_and_then_falls(kind: Any, middle: float) -> None:
    values = shape(WSD(decay_ratio=0.4, decay_type=kind), 10)
    assert values[:7] == [1.0] * 7
    assert isclose(values[8], middle) and isclose(values[10], 0.0, abs_tol=1e-12)
    assert isclose(shape(WSD(decay_ratio=0.4, decay_type=kind, min_lr_ratio=0.2), 10)[10], 0.2)


def test_wsd_begins_to_fall_at_a_whole_step() -> None:
    for total in range(1, 40):
        values = shape(WSD(decay_ratio=2 / 3, decay_type="cosine"), total)
        stable = total // 3  # what LLaMA-Factory keeps
        assert values[: stable + 1] == [1.0] * (stable + 1), total
        falling = [(1 + cos(pi * step / (total - stable))) / 2 for step in range(total - stable + 1)]
        assert values[stable:] == pytest.approx(falling, abs=1e-12)


def test_polynomial_is_a_power_of_what_is_left() -> None:
    assert shape(Polynomial(power=2.0), 4) == [1.0, 0.5625, 0.25, 0.0625, 0.0]
    assert shape(Polynomial(power=2.0, min_lr_ratio=0.5), 2) == [1.0, 0.625, 0.5]


def test_inverse_square_root_is_halved_after_three_timescales() -> None:
    assert isclose(shape(InverseSqrt(timescale=5), 20)[15], 0.5)
    assert isclose(shape(InverseSqrt(), 20, warmup=4)[16], 0.5), "warm-up is the timescale"


def test_they_are_those_of_transformers() -> None:
    """After warm-up; during it transformers is one step behind, and begins at nothing."""
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    pairs = {
        "cosine_with_restarts": (Cosine(num_cycles=3), {"num_cycles": 3}),
        "polynomial": (Polynomial(power=2.0), {"power": 2.0, "lr_end": 0.0}),
        "inverse_sqrt": (InverseSqrt(), {}),
        "warmup_stable_decay": (WSD(decay_ratio=0.25, decay_type="cosine"), {"num_decay_steps": 4}),
    }
    for name, (ours, options) in pairs.items():
        theirs = transformers.get_scheduler(name, optimizer, 4, 20, options).lr_lambdas[0]
        assert [theirs(step) for step in range(4, 20)] == pytest.approx(shape(ours, 20, 4)[4:20], abs=1e-7), name

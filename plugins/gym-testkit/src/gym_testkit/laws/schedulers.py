"""Laws of learning-rate schedules: functions of the step alone, between 0 and the peak."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

from gym_optim.kinds import Scheduler
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

TOTAL, WARMUP = 50, 10

laws = laws_of("schedulers", "scheduler")


def _factors(brought: Brought, warmup: int) -> list[float]:
    """Return the factor of every step, and the one after the last."""
    factor = cast(Callable[[int], float], brought.sample().build(total=TOTAL, warmup=warmup))
    return [factor(step) for step in range(TOTAL + 1)]


@laws("lies between 0 and 1 at every step")
def bounded(brought: Brought, bench: Bench) -> None:
    """With and without warm-up, also where warm-up takes the whole run, and for a run of one step."""
    for warmup in (0, 1, WARMUP, TOTAL):
        factors = _factors(brought, warmup)
        assert all(math.isfinite(factor) and 0.0 <= factor <= 1.0 for factor in factors), (warmup, factors)
    assert 0.0 <= brought.sample().build(total=1, warmup=0)(0) <= 1.0


@laws("starts at the peak without warm-up")
def starts(brought: Brought, bench: Bench) -> None:
    """The first step is taken at the learning rate of the recipe."""
    assert math.isclose(_factors(brought, 0)[0], 1.0)


@laws("warm-up rises to the peak")
def warms_up(brought: Brought, bench: Bench) -> None:
    """The factor never falls during warm-up, begins below a fifth and ends at 1."""
    factors = _factors(brought, WARMUP)[: WARMUP + 1]
    assert factors == sorted(factors), factors
    assert factors[0] <= 0.2, factors
    assert math.isclose(factors[-1], 1.0), factors


@laws("ends where declared", lambda brought: brought.cls.ends_at is not None)
def ends(brought: Brought, bench: Bench) -> None:
    """After the last step the factor is the declared one."""
    declared = cast(type[Scheduler], brought.cls).ends_at
    for warmup in (0, WARMUP):
        assert math.isclose(_factors(brought, warmup)[-1], cast(float, declared), abs_tol=1e-9)


@laws("is a function of the step alone")
def pure(brought: Brought, bench: Bench) -> None:
    """A resumed run asks for step 30 without having asked for the steps before."""
    factor = brought.sample().build(total=TOTAL, warmup=WARMUP)
    backwards = [factor(step) for step in reversed(range(TOTAL + 1))]
    assert backwards[::-1] == _factors(brought, WARMUP)

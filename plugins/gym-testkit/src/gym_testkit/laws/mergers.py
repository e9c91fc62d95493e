"""Laws of mergers, asked of vectors: what inputs agree on is kept where that is declared, and hostile ones cannot take over.

Whether files are read and written as they should be is no question of a merger: none sees a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor

from gym_core import GymError
from gym_deltasoup.kinds import Merger
from gym_deltasoup.vector_merge import MergedVectors, merge_vectors
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

INPUTS, SIZE = 11, 700
SPREAD = 0.1  #: standard deviation of honest inputs around what they agree on
#: What each hostile input holds, made of the honest ones.
HOSTILE: dict[str, Callable[[Tensor], Tensor]] = {
    "huge": lambda honest: torch.full_like(honest[0], 1e6),
    "opposite": lambda honest: -50 * honest.mean(0),
    "reversed": lambda honest: -honest.mean(0),
    "nothing": lambda honest: torch.zeros_like(honest[0]),
    "aside": lambda honest: honest.mean(0) + 3 * honest.std(0),
    "shifted": lambda honest: honest.mean(0) + 1,
    "not a number": lambda honest: torch.full_like(honest[0], math.nan),
    "infinite": lambda honest: torch.full_like(honest[0], math.inf),
}

laws = laws_of("mergers", "merger")


def _repeats(brought: Brought) -> bool:
    """Return whether the same inputs give the same result."""
    return not _of(brought).is_random()


def _of(brought: Brought) -> Merger:
    return cast(Merger, brought.sample())


@laws("equal inputs are the identity", lambda brought: _of(brought).idempotent())
def equal_inputs(brought: Brought, bench: Bench) -> None:
    """As many equal inputs as it needs at least, and a few more, are that input."""
    merger = _of(brought)
    vector = honest(merger)[0]
    for count in {merger.least_inputs, min(merger.most_inputs or INPUTS, INPUTS)}:
        _close(merged(merger, vector.repeat(count, 1)).vector, vector, 1e-9)


@laws("the order of the inputs does not matter", lambda brought: _of(brought).order_free())
def order(brought: Brought, bench: Bench) -> None:
    """Forwards, backwards and rotated agree to rounding; each input keeps its name."""
    merger = _of(brought)
    values = honest(merger)
    count = len(values)
    forwards = merged(merger, values).vector
    for turned in ([*range(count)][::-1], [*range(1, count), 0]):
        _close(merged(merger, values[turned], ids=[str(number) for number in turned]).vector, forwards, 1e-9)


@laws("a vector added to all inputs is added to the result", lambda brought: _of(brought).translates())
def translation(brought: Brought, bench: Bench) -> None:
    """The result moves with the inputs."""
    merger = _of(brought)
    values, moved = honest(merger), torch.linspace(-3, 5, SIZE, dtype=torch.float64)
    _close(merged(merger, values + moved).vector, merged(merger, values).vector + moved, 1e-7)


@laws("the result has the unit of the inputs", lambda brought: _of(brought).scales())
def scale(brought: Brought, bench: Bench) -> None:
    """Inputs times a number give the result times that number."""
    merger = _of(brought)
    values = honest(merger)
    _close(merged(merger, 2.5 * values).vector, 2.5 * merged(merger, values).vector, 1e-7)


@laws("how many coordinates are looked at in a step does not matter", _repeats)
def chunks(brought: Brought, bench: Bench) -> None:
    """All at once and a few hundred at a time agree to rounding."""
    merger = _of(brought)
    values = honest(merger)
    _close(merged(merger, values, most=1).vector, merged(merger, values).vector, 1e-9)


@laws("the same inputs give the same bits, and are untouched", _repeats)
def again(brought: Brought, bench: Bench) -> None:
    """Nothing is drawn that the options do not say, and no number of an input changes."""
    merger = _of(brought)
    values = honest(merger)
    before = values.clone()
    first = merged(merger, values).vector
    assert torch.equal(values, before), "an input changed"
    assert torch.equal(merged(merger, values).vector, first), "the second time the result is another"


@laws("fp32 agrees with fp64", _repeats)
def precision(brought: Brought, bench: Bench) -> None:
    """The result is of the dtype of the inputs, and as exact as that."""
    merger = _of(brought)
    values = honest(merger).float()
    found = merged(merger, values).vector
    assert found.dtype == torch.float32, f"fp32 inputs give {found.dtype}"
    _close(found.double(), merged(merger, values.double()).vector, 1e-5)


@laws("what it tolerates grows with the inputs, and is fewer than half of them")
def tolerated(brought: Brought, bench: Bench) -> None:
    """Also for no inputs at all; with an input that is trusted more than half may be hostile. One more is refused."""
    merger = _of(brought)
    found = [merger.tolerates(inputs) for inputs in range(41)]
    assert found == sorted(found) and found[0] == 0, f"{found}"
    assert merger.needs_trusted or all(2 * hostile < max(1, n) for n, hostile in enumerate(found)), f"{found}"
    values = honest(merger)
    try:
        merged(merger, values, merger.tolerates(len(values)) + 1)
    except GymError:
        return
    raise AssertionError("more hostile inputs than it tolerates are not refused")


@laws("hostile inputs cannot move it far", lambda brought: _repeats(brought) and _of(brought).tolerates(INPUTS) > 0)
def bounded(brought: Brought, bench: Bench) -> None:
    """With as many hostile inputs as declared, the result stays near that without them: within a few honest spreads, or norms.

    Honest inputs agree but for some noise, and then in full, with zeros where nobody changed anything.
    """
    merger = _of(brought)
    noisy = honest(merger)
    agreed = (noisy[:1] * (torch.arange(SIZE) % 3 > 0)).repeat(len(noisy), 1)
    for values, bad in product((noisy, agreed), {1, min(merger.tolerates(INPUTS), (INPUTS - 1) // 2)}):
        apart = values - values.mean(0) if merger.bounded_by() == "spread" else values
        good = values[: INPUTS - bad]
        wanted = merged(merger, good, 0).vector
        limit = 2 / (1 - 2 * bad / INPUTS) * float(apart.norm(dim=1).max()) + 1e-6 * float(values.norm(dim=1).max())
        for name, lie in HOSTILE.items():
            found = merged(merger, torch.cat([good, lie(good).repeat(bad, 1)]), bad)
            away = float((found.vector - wanted).norm())
            assert away <= limit, f"{bad} of {INPUTS} inputs are {name}: moved by {away:.3g}, limit {limit:.3g}"
            assert found.tolerated_byzantine + len(found.report["excluded"]) >= bad


@laws("one input moves the result by its sensitivity at most", lambda brought: bool(_sensitivity(_of(brought), 0)))
def sensitivity(brought: Brought, bench: Bench) -> None:
    """Of inputs of norm 1 one becomes another, however different: the result moves by no more than was declared."""
    merger = _of(brought)
    values = honest(merger)
    values /= values.norm(dim=1, keepdim=True)
    draw = torch.Generator().manual_seed(8)
    for bad in {0, merger.tolerates(len(values))}:
        limit = _sensitivity(merger, bad)
        assert limit is not None and limit >= 0, f"with {bad} hostile inputs the sensitivity is {limit}"
        before = merged(merger, values, bad).vector
        for other in (-values[1], values[2], torch.randn(SIZE, generator=draw, dtype=torch.float64)):
            changed = values.clone()
            changed[0] = other / other.norm()
            away = float((merged(merger, changed, bad).vector - before).norm())
            assert away <= limit * (1 + 1e-9), f"{bad} hostile: moved by {away:.4g}, declared {limit:.4g}"


def _sensitivity(merger: Merger, hostile: int) -> float | None:
    return merger.sensitivity(min(merger.most_inputs or INPUTS, INPUTS), hostile, 1.0)


def honest(merger: Merger) -> Tensor:
    """Return inputs that agree but for some noise: fp64 `[inputs, coordinates]`, as many as the merger takes."""
    count = min(merger.most_inputs or INPUTS, INPUTS)
    draw = torch.Generator().manual_seed(7)
    middle = 1 + torch.rand(SIZE, generator=draw, dtype=torch.float64)
    middle *= torch.randn(SIZE, generator=draw, dtype=torch.float64).sign()
    return middle + SPREAD * torch.randn(count, SIZE, generator=draw, dtype=torch.float64)


def merged(merger: Merger, values: Tensor, hostile: int = 0, **more: Any) -> MergedVectors:
    """Merge with whatever the merger asks for: the input `0` is trusted, and what is near to it is good."""
    names = more.get("ids") or [str(number) for number in range(len(values))]
    first = values[names.index("0")]
    return merge_vectors(
        merger,
        values,
        hostile,
        trusted="0" if merger.needs_trusted else None,
        evaluate=(lambda vector: -float((vector - first).norm())) if merger.needs_evaluation else None,
        **more,
    )


def _close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    error = float((found - wanted).norm() / wanted.norm().clamp(min=1e-12))
    assert error <= tolerance, f"relative difference {error:.3g}"

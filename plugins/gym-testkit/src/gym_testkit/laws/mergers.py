"""Laws of mergers of models: what the inputs agree on is kept, and hostile ones cannot take over."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from gym_core import Artifact
from gym_testkit import weights
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_testkit.tiny import random_weights
from gym_torch.kinds import Merger

INPUTS = 9
#: What a hostile input holds in place of each honest number.
HOSTILE: dict[str, Callable[[float], float]] = {
    "huge": lambda value: 1e6,
    "opposite": lambda value: -50.0 * value,
    "infinite": lambda value: math.inf,
    "not a number": lambda value: math.nan,
}

laws = laws_of("mergers", "merger")


def _is_robust(brought: Brought) -> bool:
    return cast(type[Merger], brought.cls).tolerates > 0


@laws("one input is the identity")
def identity(brought: Brought, bench: Bench) -> None:
    """A model merged with nobody is itself."""
    model = bench.model()
    _close(_merged(brought, bench, [model], "alone"), weights.read(model), 1e-6)


@laws("equal inputs are the identity")
def equal_inputs(brought: Brought, bench: Bench) -> None:
    """Three times the same model is that model."""
    model = bench.model()
    _close(_merged(brought, bench, [model] * 3, "same"), weights.read(model), 1e-6)


@laws("the order of the inputs does not matter")
def order(brought: Brought, bench: Bench) -> None:
    """Forwards, backwards and rotated agree to rounding."""
    models = [bench.model(seed) for seed in range(4)]
    forwards = _merged(brought, bench, models, "forwards")
    _close(_merged(brought, bench, models[::-1], "backwards"), forwards, 1e-5)
    _close(_merged(brought, bench, models[1:] + models[:1], "rotated"), forwards, 1e-5)


@laws("the inputs are untouched")
def untouched(brought: Brought, bench: Bench) -> None:
    """Not one byte of an input changes."""
    models = [bench.model(seed) for seed in range(2)]
    before = [fingerprint(model) for model in models]
    _merged(brought, bench, models, "merged")
    assert [fingerprint(model) for model in models] == before


@laws("bounded under the declared share of hostile inputs", _is_robust)
def bounded(brought: Brought, bench: Bench) -> None:
    """The result stays within a few honest spreads of the honest mean, whatever the hostile inputs hold."""
    share = cast(type[Merger], brought.cls).tolerates
    inputs = max(INPUTS, math.ceil(1 / share))
    bad = math.floor(share * inputs + 1e-9)
    honest = [_nearby(seed) for seed in range(inputs - bad)]
    middle = _mean(honest)
    spread = max(weights.distance(middle, each) for each in honest)
    for name, lie in HOSTILE.items():
        liar = {key: weights.Tensor(t.shape, [lie(value) for value in t.values]) for key, t in honest[0].items()}
        models = [bench.model_with(each, f"{name}-{number}") for number, each in enumerate([*honest, *[liar] * bad])]
        away = weights.distance(middle, _merged(brought, bench, models, f"{name}-merged"))
        limit = 2 / (1 - 2 * bad / inputs) * spread
        assert away <= limit, f"{bad} of {inputs} inputs are {name}: {away:.3g} from the honest mean, limit {limit:.3g}"


def _merged(brought: Brought, bench: Bench, models: Sequence[Path], name: str) -> dict[str, weights.Tensor]:
    artifact = brought.sample().build().merge([Artifact(model) for model in models], bench.path(name))
    return weights.read(artifact.path)


def _close(found: Mapping[str, weights.Tensor], wanted: Mapping[str, weights.Tensor], tolerance: float) -> None:
    error = weights.distance(wanted, found) / weights.size(wanted)
    assert error <= tolerance, f"relative difference {error:.3g}"


def _nearby(seed: int) -> dict[str, weights.Tensor]:
    """Return the tiny model moved a little, as by another fine-tune."""
    moved = {}
    for position, (name, tensor) in enumerate(random_weights(0).items()):
        change = weights.normal(tensor.shape, 10_000 + 100 * seed + position, 0.01)
        moved[name] = weights.Tensor(tensor.shape, [a + b for a, b in zip(tensor.values, change.values, strict=True)])
    return moved


def _mean(models: Sequence[Mapping[str, weights.Tensor]]) -> dict[str, weights.Tensor]:
    return {
        name: weights.Tensor(
            tensor.shape,
            [math.fsum(each) / len(models) for each in zip(*(m[name].values for m in models), strict=True)],
        )
        for name, tensor in models[0].items()
    }

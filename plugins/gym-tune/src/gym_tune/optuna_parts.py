"""Samplers and pruners of Optuna, built from the options of components."""

from __future__ import annotations

import hashlib
import warnings
from typing import TYPE_CHECKING, Any

from optuna.exceptions import ExperimentalWarning

from gym_core.component import construct

if TYPE_CHECKING:
    from gym_tune.pruners import OptunaPruner
    from gym_tune.samplers import OptunaSampler


def build_sampler(config: OptunaSampler, seed: int, trial: int) -> Any:
    """Return the sampler of Optuna that the class names, with the options and a seed of this trial."""
    return _made(config.of, seed=seed % 2**32 if config.one_sequence else seed_of(seed, trial), **config.options())


def build_pruner(config: OptunaPruner) -> Any:
    """Return the pruner of Optuna that the class names, with the options."""
    return _made(config.of, **config.options())


def seed_of(seed: int, trial: int) -> int:
    """Return a seed for one trial of a study."""
    return int.from_bytes(hashlib.sha256(f"{seed} {trial}".encode()).digest()[:4], "big")


def _made(reference: str, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return construct(reference, **options)

"""The kinds `samplers` and `pruners`: what chooses the values of trials, and what ends trials early. No torch here."""

from __future__ import annotations

from typing import ClassVar

from gym_core.component import Component


class Sampler(Component):
    """Chooses the values of a trial. `build(seed=int, trial=int)` returns an `optuna.samplers.BaseSampler`.

    It is built anew for each trial, with the seed of the study and the number of the trial: what it draws follows from these and
    from the trials before, so a study that was killed goes on as if it had not been.
    """

    kind: ClassVar[str] = "samplers"
    finite: ClassVar[bool] = False
    """Whether it tries every point of the space once: each range of real numbers then needs a `step`."""


class Pruner(Component):
    """Ends trials early. `build()` returns an `optuna.pruners.BasePruner`; steps are optimizer steps.

    It is asked after each value of the metric, with all trials as they are in the study.
    """

    kind: ClassVar[str] = "pruners"
    prunes: ClassVar[bool] = True
    """Whether it may end a trial."""

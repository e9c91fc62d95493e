"""Laws of pruners: what is best is never ended, and a pruner that says it ends nothing does not."""

from __future__ import annotations

from typing import cast

import optuna
from optuna.trial import TrialState

from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_tune.kinds import Pruner

TRIALS, STEPS = 40, range(10, 101, 10)

laws = laws_of("pruners", "pruner")


def _ended(brought: Brought) -> list[tuple[int, int]]:
    """Return number and step of each trial that is ended; every tenth has the best value."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = brought.sample().build()
    study = optuna.create_study(pruner=pruner, study_name="study", sampler=optuna.samplers.RandomSampler(seed=0))
    ended = []
    for number in range(TRIALS):
        trial = study.ask()
        for step in STEPS:
            trial.report(float(number % 10), step)
            if trial.should_prune():
                ended.append((number, step))
                study.tell(trial, state=TrialState.PRUNED)
                break
        else:
            study.tell(trial, float(number % 10))
    return ended


@laws("decides by the trials alone")
def pure(brought: Brought, bench: Bench) -> None:
    """The same trials are ended at the same steps by another one of it: a study that goes on has a new one."""
    assert _ended(brought) == _ended(brought)


@laws("declares whether it ends trials")
def declared(brought: Brought, bench: Bench) -> None:
    """One with `prunes = False` ends none, however bad."""
    if not cast(type[Pruner], brought.cls).prunes:
        assert not _ended(brought)

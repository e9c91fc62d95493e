"""Laws of samplers: what is drawn follows from the seed and the trials before, and is in the space."""

from __future__ import annotations

from typing import Any

import optuna

from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

TRIALS = 8

laws = laws_of("samplers", "sampler")


def _drawn(brought: Brought, cut: int = TRIALS) -> list[dict[str, Any]]:
    """Return the values of each trial; after `cut` of them as a process does that goes on with what is stored."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, study_name="study")
    config = brought.sample()
    for number in range(TRIALS):
        if number == cut:
            config = brought.sample()
        study = optuna.load_study(storage=storage, study_name="study")
        study.sampler = config.build(seed=1, trial=number)
        trial = study.ask()
        assert trial.number == number
        rate, count = trial.suggest_float("rate", 0.0, 1.0, step=0.25), trial.suggest_int("count", 1, 4)
        choice = trial.suggest_categorical("choice", ["one", "two"])
        assert 0.0 <= rate <= 1.0 and 1 <= count <= 4 and choice in ("one", "two")
        study.tell(trial, rate + count)
    return [trial.params for trial in study.trials]


@laws("goes on in another process as if it had not stopped")
def resumes(brought: Brought, bench: Bench) -> None:
    """Each value is in its range, and the same whether the sampler was built for all trials or anew in their midst."""
    assert _drawn(brought) == _drawn(brought, cut=TRIALS // 2)


@laws("may be told to draw nothing")
def fixed(brought: Brought, bench: Bench) -> None:
    """A trial whose values are given has these: the recipe's own, and starting points."""
    study = optuna.create_study(sampler=brought.sample().build(seed=0, trial=0))
    study.enqueue_trial({"rate": 0.5})
    assert study.ask().suggest_float("rate", 0.0, 1.0, step=0.25) == 0.5

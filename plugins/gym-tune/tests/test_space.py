"""The space: what a range and a list mean to Optuna and to a recipe, and what samplers and pruners draw and decide."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from gym_core.loading import load_component
from gym_core.sections import Findings
from gym_core.yamlfile import parse_scalar
from gym_tune.space import Axis, Range, read_space

SAMPLERS = ["tpe", "random", "grid", "qmc", "gp"]


def axes_of(raw: dict[str, Any]) -> list[Axis]:
    """Return the axes of a space, which has nothing wrong."""
    found = Findings()
    axes = read_space(raw, found)
    assert not found.problems
    return axes


def test_what_is_written_is_what_optuna_draws_from():
    raw = {
        "a.rate": {"low": 1e-6, "high": 1e-3, "log": True},
        "a.rank": {"low": 2, "high": 9, "step": 3},
        "a.share": {"low": 0, "high": 1, "step": 0.3},
        "a.size": [8, 16],
        "a": ["x", {"name": "y", "k": [1, 2]}],
    }
    axes = {axis.key: axis for axis in axes_of(raw)}
    assert next(iter(axes)) == "a", "a component is set before its options"
    assert axes["a.rate"].distribution() == FloatDistribution(1e-6, 1e-3, log=True)
    assert axes["a.rank"].distribution() == IntDistribution(2, 8, step=3)
    assert axes["a.share"].distribution() == FloatDistribution(0.0, 0.9, step=0.3)
    assert axes["a.size"].distribution() == CategoricalDistribution([8, 16])
    kept = axes["a"].distribution()
    assert isinstance(kept, CategoricalDistribution)
    assert [axes["a"].value(each) for each in kept.choices] == raw["a"], "a mapping comes back as it was"


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 7), st.booleans(), st.integers(0, 2**31))
def test_every_value_drawn_is_in_the_range_and_comes_back_from_an_override(
    low: int, width: int, step: int, real: bool, seed: int
):
    given_step = None if step > width else step / 2 if real else step
    axis = Axis("k", ("k",), Range(low=low / 2 if real else low, high=low + width, step=given_step))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    trial = study.ask()
    axis.suggest(trial)
    value = axis.value(trial.params["k"])
    assert axis.contains(value) and all(axis.contains(corner) for corner in axis.corners())
    again = parse_scalar(json.dumps(value))
    assert again == value and type(again) is type(value)
    assert not axis.contains(axis.corners()[1] + 1) and not axis.contains("word") and not axis.contains(True)


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_a_sampler_draws_follows_from_the_seed_and_the_trials_before(name: str):
    config = load_component("samplers", name)[1]()
    config.check()
    axes = axes_of({"x": {"low": 0.0, "high": 1.0, "step": 0.05}, "y": {"low": 1, "high": 9}})

    def drawn(seed: int) -> list[dict[str, Any]]:
        study = optuna.create_study(pruner=optuna.pruners.NopPruner())
        for number in range(13):
            study.sampler = config.build(seed=seed, trial=number)
            trial = study.ask()
            for axis in axes:
                axis.suggest(trial)
            study.tell(trial, (trial.params["x"] - 0.3) ** 2 + trial.params["y"])
        return [trial.params for trial in study.trials]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    first = drawn(1)
    assert first == drawn(1) != drawn(2)
    assert len({json.dumps(each) for each in first}) > 10, "trials differ"


@pytest.mark.parametrize("name", ["median", "percentile", "asha", "hyperband", "none"])
def test_a_pruner_ends_bad_trials_alone(name: str):
    config = load_component("pruners", name)[1]()
    study = optuna.create_study(
        pruner=config.build(), study_name="study", sampler=optuna.samplers.RandomSampler(seed=0)
    )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for number in range(40):
        trial, value = study.ask(), float(number % 10)
        for step in range(10, 101, 10):
            trial.report(value, step)
            if trial.should_prune():
                study.tell(trial, state=TrialState.PRUNED)
                break
        else:
            study.tell(trial, value)
    pruned = {trial.intermediate_values[10] for trial in study.trials if trial.state == TrialState.PRUNED}
    assert bool(pruned) == config.prunes and 0.0 not in pruned


def test_help_and_the_options_import_neither_optuna_nor_torch():
    code = "import sys; from gym_core.cli import run; run(['tune', '--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "n_trials=20" in done.stdout and "sampler=tpe" in done.stdout
    assert not {"torch", "optuna", "numpy", "matplotlib"} & set(done.stdout.split())

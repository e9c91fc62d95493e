"""What is refused before the first trial, with file, line, key, why, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hills_package import Tune, Write
from optuna.distributions import IntDistribution

from gym_core import GymError
from gym_tune.notes import notes
from gym_tune.study import read_study
from gym_tune.tuning import prepared

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"algorithm.xx": [1, 2]}, r"algorithm\.xx: unknown key\n  -> did you mean `x`"),
    ({"algorithm.y": {"low": 0, "high": 4}}, r"algorithm\.y: input should be greater than 0 \(got 0\)"),
    ({"algorithm.x": {"low": 1, "high": 11}}, r"algorithm\.x: input should be less than or equal to 10 \(got 11\)"),
    ({"algorithm.way": ["plain", "flat"]}, "algorithm.way: input should be 'plain' or 'steep'"),
    ({"algorithm": ["hill", "hil"]}, "did you mean `hill`"),
    ({"optimizer": ["adamw", "adamx"]}, "no installed plugin brings the optimizer `adamx`"),
    ({"algorithm.y": {"low": 1.0, "high": 4.0}}, "is a whole number"),
    ({"algorithm.x": {"low": 3, "high": 1}}, "low 3 is not below high 1"),
    ({"algorithm.x": {"low": 0, "high": 1, "log": True}}, "with log, low is above 0"),
    ({"algorithm.x": {"low": 1, "high": 2, "lgo": True}}, "did you mean `log`"),
    ({"algorithm.x": [1, 2, 1]}, "the choice 1 is given twice"),
    ({"algorithm.x": 3}, "neither a range nor a list"),
    ({"algorithm.y": [2], "algorithm": {"y": [3]}}, "`algorithm.y` is given twice"),
    ({"output": ["a", "b"]}, "no hyperparameter"),
    ({"quantization": ["gptq", "awq"]}, "no hyperparameter of training"),
    ({"train.seed": {"low": 0, "high": 9}}, "`repeats` runs the best trial with other seeds"),
    ({"train.save_every": [1, 2]}, "changes no number of a run"),
    ({"train.batch_tokens": [64, 128], "train.batch_size": [2, 4]}, "set batch_size or batch_tokens, not both, with "),
    ({}, "is empty"),
]


@pytest.mark.parametrize(("space", "said"), REFUSED, ids=[str(space) for space, _ in REFUSED])
def test_a_wrong_space_is_refused_at_its_line(write: Write, space: dict[str, Any], said: str):
    with pytest.raises(GymError, match=said) as refused:
        prepared(read_study(write(space=space)))
    assert all(str(problem).count("\n") < 4 for problem in refused.value.problems)
    assert all("tune.yaml:" in problem.where for problem in refused.value.problems)


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ({"sampler": "tpee"}, "did you mean `tpe`"),
        ({"sampler": {"name": "tpe", "n_startup": 3}}, "did you mean `n_startup_trials`"),
        ({"pruner": {"name": "median", "n_warmup_steps": -1}}, r"pruner\.n_warmup_steps"),
        ({"n_trails": 3}, "did you mean `n_trials`"),
        ({"space": None}, "space: is required"),
        ({"recipe": "elsewhere.yaml"}, "cannot be read"),
        ({"sampler": "grid"}, "give it a `step`"),
        ({"starting_points": [{"algorithm.x": 5}]}, "outside of the space"),
        ({"starting_points": [{"algorithm.z": 5}]}, "no key of the space"),
        ({"metric": "eval_beauty"}, "which way `eval_beauty` is better"),
    ],
)
def test_a_wrong_study_is_refused(write: Write, study: dict[str, Any], said: str):
    with pytest.raises(GymError, match=said):
        prepared(read_study(write(**study)))


def test_a_recipe_in_place_of_a_study_is_said(write: Write):
    with pytest.raises(GymError, match="is no study") as refused:
        read_study(write().with_name("recipe.yaml"))
    assert len(refused.value.problems) == 1


def test_steps_are_whole_numbers_also_where_the_option_may_be_a_share(write: Write):
    (axis,) = prepared(read_study(write(space={"train.warmup": {"low": 0, "high": 100}})))[1]
    assert axis.corners() == (0, 100) and isinstance(axis.distribution(), IntDistribution)


def test_an_option_is_that_of_the_components_of_the_space(write: Write):
    space = {"optimizer": ["adamw", "muon"], "optimizer.beta1": {"low": 0.5, "high": 0.9}}
    (component, option) = prepared(read_study(write({"optimizer": "sgd"}, space=space)))[1]
    assert (component.key, option.key) == ("optimizer", "optimizer.beta1")


def test_an_algorithm_that_does_not_say_what_it_improves_needs_a_metric(write: Write):
    mute = {"base": {"algorithm": "mute"}, "space": {"train.learning_rate": [1.0, 2.0]}}
    with pytest.raises(GymError, match="does not say what it improves"):
        prepared(read_study(write(**mute)))
    assert prepared(read_study(write(**mute, metric="eval_loss", direction="maximize")))[2].direction == "maximize"


def test_a_metric_that_no_run_writes_ends_the_study_at_once(tune: Tune):
    with pytest.raises(GymError, match="wrote no `beauty`, but eval_loss"):
        tune(metric="beauty", direction="maximize")


def test_words_override_the_study_or_else_the_recipe(write: Write):
    words = [
        "n_trials=7",
        "sampler.name=random",
        "space.algorithm.x.high=3",
        "train.max_steps=4",
        "algorithm.pause=0.5",
    ]
    file = read_study(write(space={"algorithm": {"x": {"low": 1, "high": 2}}}), words)
    base, (axis,), _ = prepared(file)
    assert file.study.n_trials == 7 and axis.corners() == (1.0, 3.0)
    assert base.recipe.train.max_steps == 4
    with pytest.raises(GymError, match="command line"):
        read_study(write(), ["n_trials=0"])


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ({}, ["`algorithm.y` may change what `eval_loss` measures"]),
        ({"metric": "eval_loss"}, []),
        ({"space": {"train.learning_rate": [1.0, 2.0]}}, []),
        ({"space": {"train.epochs": [1, 2]}}, ["with other `train.epochs` a step is another share of a run"]),
        ({"space": {"train.epochs": [1, 2]}, "pruner": "none"}, []),
        ({"base": {"train": {"max_steps": 2}}, "metric": "eval_loss"}, ["nothing can be pruned"]),
    ],
)
def test_what_makes_a_comparison_doubtful_is_said(write: Write, study: dict[str, Any], said: list[str]):
    file = read_study(write(**{"space": {"algorithm.y": [1, 2]}, **study}))
    found = list(notes(file.study, *prepared(file), ""))
    assert len(found) == len(said) and all(text in note for text, note in zip(said, found, strict=True))


def test_own_values_outside_of_the_space_are_said_and_not_tried(tune: Tune, capfd: pytest.CaptureFixture[str]):
    found = tune(space={"algorithm.x": {"low": 1, "high": 4}}, n_trials=1)
    assert found["own"] is None and "own `algorithm.x` is outside of the space" in capfd.readouterr().err


def test_nothing_is_written_where_something_is_wrong(tune: Tune, tmp_path: Path):
    with pytest.raises(GymError):
        tune(space={"algorithm.y": {"low": 0, "high": 4}})
    assert not (tmp_path / "study").exists()

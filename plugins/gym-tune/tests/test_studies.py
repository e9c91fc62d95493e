"""Studies that are carried out: what they find, what comes out, and what becomes of trials that fail or are ended early."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hills_package import RECIPE, Tune

from gym_core import BusyError, GymError, execute, load_recipe


def rows(folder: Path) -> list[dict[str, str]]:
    """Return the lines of `trials.csv`."""
    return list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))


def test_a_study_finds_better_values_and_writes_a_recipe_that_gets_them(tune: Tune, tmp_path: Path):
    found = tune(n_trials=10, repeats=2)
    assert found["metric"] == "eval_loss" and found["direction"] == "minimize"
    assert sum(found["trials"].values()) == 10 and not found["trials"]["failed"]
    assert found["own"]["values"] == {"algorithm.x": 0.0, "algorithm.y": 3}, "trial 0 has the recipe's own values"
    assert found["best"]["value"] < found["own"]["value"]
    study = tmp_path / "study"
    listed = rows(study)
    values = {int(row["trial"]): float(row["value"]) for row in listed if row["state"] == "complete"}
    assert len(listed) == 10 and min(values.items(), key=lambda item: item[1]) == (
        found["best"]["trial"],
        found["best"]["value"],
    )
    assert json.loads((study / "summary.json").read_text()) == found
    assert (study / "trials.png").read_bytes()[:4] == b"\x89PNG"
    execute(load_recipe(study / "best.yaml"))
    last = json.loads((study / "best" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["eval_loss"] == found["best"]["value"]
    for name, shift in (("best", found["best"]["value"]), ("own values", found["own"]["value"])):
        assert found["repeats"][name]["values"] == pytest.approx([shift + 0.001, shift + 0.002]), "seeds 1 and 2"


@pytest.mark.parametrize(
    ("trouble", "why"),
    [("raise", "the hill is gone"), ("kill", "SIGKILL"), ("nan", "no finite number")],
)
def test_a_trial_that_fails_keeps_its_reason_and_the_study_goes_on(tune: Tune, tmp_path: Path, trouble: str, why: str):
    space = {"algorithm.x": [-1.0, 1.0]}
    found = tune(
        base={"algorithm": {"name": "hill", "x": 5.0, "trouble": trouble}}, space=space, sampler="grid", pruner="none"
    )
    assert found["trials"] == {"complete": 1, "pruned": 0, "failed": 1}, "and each point of a grid is tried once"
    assert found["best"]["values"] == {"algorithm.x": 1.0}
    (failed,) = (row for row in rows(tmp_path / "study") if row["state"] == "failed")
    assert why in failed["reason"] and failed["value"] == ""


def test_a_full_disk_ends_the_study_and_fails_no_trial(tune: Tune, monkeypatch: pytest.MonkeyPatch):
    given: dict[str, Any] = {
        "base": {"algorithm": {"name": "hill", "x": -1.0, "trouble": "full"}},
        "space": {"algorithm.y": [2, 3]},
        "n_trials": 1,
    }
    with pytest.raises(GymError, match=r"the disk is full\n  -> make room"):
        tune(**given)
    monkeypatch.setenv("HILLS_HAVE_ROOM", "1")
    assert tune(**given)["trials"] == {"complete": 1, "pruned": 0, "failed": 0}


def test_a_study_ends_where_no_trial_comes_to_a_value(tune: Tune):
    with pytest.raises(GymError, match=r"none of the first trials came to a value.*the hill is gone"):
        tune(
            base={"algorithm": {"name": "hill", "x": -1.0, "trouble": "raise"}},
            space={"algorithm.y": {"low": 1, "high": 9}},
            n_trials=20,
        )


def test_a_bad_trial_is_ended_early_and_its_checkpoint_is_whole(tune: Tune, tmp_path: Path):
    points = [{"algorithm.x": 2.0, "algorithm.y": 5}, {"algorithm.x": 4.0, "algorithm.y": 9}]
    slow = {"algorithm": {"name": "hill", "pause": 0.1}, "train": {"max_steps": 40, "eval_every": 2}}
    found = tune(base=slow, starting_points=points, pruner={"name": "median", "n_startup_trials": 1})
    assert found["trials"] == {"complete": 2, "pruned": 1, "failed": 0}
    bad = rows(tmp_path / "study")[2]
    assert bad["state"] == "pruned" and int(bad["steps"]) < 40
    run = tmp_path / "study/trials/0002"
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    execute(load_recipe(run.with_name("0002.yaml")))
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 40, "it goes on where it stopped"


def test_trials_export_nothing_and_the_best_recipe_does(tune: Tune, tmp_path: Path):
    assert tune(base={"export": ["postcard"], "train": {"max_steps": 2, "overwrite": True}}, n_trials=1)["trials"][
        "complete"
    ]
    assert not load_recipe(tmp_path / "study/trials/0000.yaml").export
    best = load_recipe(tmp_path / "study/best.yaml")
    assert len(best.export) == 1 and not best.train.overwrite


def test_a_run_that_is_evaluated_at_its_end_alone_is_never_pruned(tune: Tune):
    found = tune(base={"train": {"max_steps": 2}}, n_trials=2, pruner={"name": "impatient"})
    assert found["trials"]["complete"] == 2


def test_a_sampler_and_a_pruner_of_a_stranger_do_all_that_ours_do(tune: Tune, tmp_path: Path):
    found = tune(sampler="second", pruner={"name": "impatient"})
    assert found["trials"] == {"complete": 1, "pruned": 2, "failed": 0}
    last = rows(tmp_path / "study")[-1]
    assert (last["algorithm.x"], last["algorithm.y"]) == ("4.0", "9")


@pytest.mark.parametrize("sampler", ["random", {"name": "tpe", "n_startup_trials": 0, "multivariate": True}])
def test_a_study_may_be_made_longer_and_is_that_of_one_command(tune: Tune, tmp_path: Path, sampler: Any):
    space = {
        "algorithm.x": {"low": 1, "high": 3},
        "algorithm": [{"name": "hill", "tags": ["a", "b"]}, {"name": "hill", "way": "steep"}],
    }
    given: dict[str, Any] = {"sampler": sampler, "pruner": {"name": "hyperband", "min_resource": 2}, "space": space}
    tune(**given, n_trials=3)
    whole = rows(tmp_path / "study")
    apart = str(tmp_path / "apart")
    tune(**given, n_trials=1, output=apart)
    tune(**given, n_trials=3, output=apart)
    timeless = [{key: value for key, value in row.items() if key != "seconds"} for row in rows(Path(apart))]
    assert timeless == [{key: value for key, value in row.items() if key != "seconds"} for row in whole]
    assert len({row["algorithm.x"] for row in whole}) == 3, "each trial has draws of its own"


def test_a_changed_study_is_refused_by_name(tune: Tune, tmp_path: Path):
    tune(n_trials=1)
    for changed, named in (
        ({"space": {"algorithm.x": {"low": 0, "high": 3}}}, r"space\.algorithm\.x"),
        ({"seed": 1}, "seed 0 -> 1"),
        ({"sampler": "random"}, "sampler 'tpe of"),
        ({"base": {"train": {"max_steps": 9, "eval_every": 2}}}, r"recipe\.train\.max_steps 8 -> 9"),
        (
            {"base": {"train": {**RECIPE["train"], "load_best_model_at_end": True}}},
            r"load_best_model_at_end False -> True",
        ),
    ):
        with pytest.raises(BusyError, match=named):
            tune(**{"n_trials": 1, **changed})
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("precious")
    with pytest.raises(BusyError, match="holds no study"):
        tune(output=str(tmp_path / "other"))


def test_a_folder_whose_name_means_something_in_an_url(tune: Tune, tmp_path: Path):
    assert tune(n_trials=1, output=str(tmp_path / "50% {a}?b=c #1 ü"))["best"]

"""A model that learnt twenty facts forgets five of them and keeps fifteen: against one that never saw the five."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from taught_facts import Facts

from gym_core import GymError
from gym_testkit.bench import Bench
from gym_unlearn.command import unlearn

CHANCE = 1 / 13**2


def reported(output: Path, *options: str) -> dict[str, Any]:
    """Return what the command prints as JSON."""
    done = CliRunner().invoke(unlearn, ["report", str(output), "--json", *options], catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"name": "npo", "beta": 0.5},
        {"name": "rmu", "steering_coeff": 20, "alpha": 10},
    ],
    ids=lambda each: each["name"],
)
def test_facts_are_forgotten_and_others_kept(facts: Facts, options: dict[str, Any]) -> None:
    train = {"max_steps": 60, "batch_size": 5, "learning_rate": 3e-3}
    recipe = facts.recipe({**options, "retain_per_forget": 3}, **train)
    output = facts.bench.run(recipe | {"scheduler": "constant"}, options["name"]).outcome.output
    told = reported(output, "--retrained", facts.never)
    before, after, never = (told["models"][name] for name in ("before", "after", "retrained"))
    assert told["rows"] == {"forget": 5, "retain": 15}
    assert before["forget"]["exact_match"] == 1 and before["forget_quality"] < 0.05
    assert after["forget"]["exact_match"] <= CHANCE + 0.05 and after["forget"]["probability"] < 0.1
    assert after["retain"]["exact_match"] >= 0.95 and after["utility"] > 0.95 * before["utility"]
    assert after["forget_quality"] > 0.05 and never["forget_quality"] == 1
    assert {Path(file).name for file in told["files"]} == {"unlearning.json", "unlearning.png"}
    assert all(Path(file).stat().st_size for file in told["files"])


def test_an_adapter_forgets_and_its_base_does_not(facts: Facts) -> None:
    recipe = facts.recipe({"name": "npo", "retain_loss_type": "KL"}, max_steps=20, batch_size=5, learning_rate=0.01)
    recipe["data"]["validation_sources"] = facts.data
    run = facts.bench.run(recipe | {"adapter": {"name": "lora", "rank": 4}}, "adapter")
    assert run.series("forget_probability")[-1] < 0.7 * run.series("forget_probability")[0]
    assert 0 <= run.series("retain_loss")[0] < 1e-5 < run.series("retain_loss")[-1]
    told = reported(run.outcome.output, "--beside", facts.never)
    assert told["models"]["before"]["forget"]["exact_match"] == 1
    assert told["models"]["after"]["forget"]["probability"] == pytest.approx(
        run.series("eval_forget_probability")[-1], rel=1e-3
    )
    assert told["models"]["after"]["membership_auc"] == 0.5, "what was held out are the same rows"
    assert facts.never in told["models"]


def test_a_report_measures_all_rows_of_two_readings_of_a_file_and_folders_that_are_named_as_roles(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with two subsets of a dataset: their rows have the same ids."""
    file = bench.file([{"q": f"What {n}?", "a": f"It {n}", "other": f"Not {n}"} for n in range(4)])
    sources = [
        {"name": kind, "source": {"path": str(file), "read_as": {"name": "alpaca", "prompt": "q", "response": answer}}}
        for kind, answer in (("forget", "a"), ("retain", "other"))
    ]
    output = bench.run(bench.recipe("npo") | {"data": {"sources": sources}}).outcome.output
    shutil.copytree(bench.model(), tmp_path / "after")
    shutil.copytree(bench.model(seed=1), tmp_path / "retrained")
    monkeypatch.chdir(tmp_path)
    told = reported(output, "--beside", "after", "--beside", "retrained")
    assert told["rows"] == {"forget": 4, "retain": 4}
    models = told["models"]
    assert models["./after"] == models["before"] != models["after"] and "forget_quality" not in models["./retrained"]


def test_reports_of_runs_that_did_not_unlearn_are_refused(bench: Bench) -> None:
    """KTO learns from rows of the same shape."""
    output = bench.run(bench.recipe("kto", "feedback")).outcome.output
    with pytest.raises(GymError, match="did not unlearn"):
        reported(output)

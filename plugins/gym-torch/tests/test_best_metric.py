"""The metric that a recipe names tells the best checkpoint and early stopping; one that evaluations do not give is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gym_torch_bench import Memory, make_run, metrics, train
from test_evaluation import SETTINGS, Climbing, Likely

from gym_core import RecipeError, Train
from gym_torch import EarlyStopping, TorchAlgorithm
from gym_torch.loop.best_metric import best_metric

MISSING = "evaluations here do not give `heights`, but: `likelihood`, `samples`"


class Declared(Climbing):
    """Says of what it measures which way is better."""

    def evaluation_metrics(self) -> dict[str, str]:
        """Return what it gives, and one that it does not."""
        return {"samples": "higher", "heights": "lower"}


def asked(output: Path, model: Path, algorithm: TorchAlgorithm, metric: str, **settings: Any) -> dict[str, Any]:
    """Carry out a run that looks at this metric, and return what `run.json` says of it."""
    stop = {"callbacks": (EarlyStopping(patience=2),)}
    options = SETTINGS | {"metric_for_best_model": metric} | settings
    train(make_run(model, output, Memory(held_out=6), algorithm, stop, **options))
    record: dict[str, Any] = json.loads((output / "run.json").read_text())
    return record


def test_checkpoints_early_stopping_and_plots_follow_the_metric(model_path: Path, tmp_path: Path) -> None:
    record = asked(tmp_path, model_path, Declared(), "eval_samples", plot=True)
    assert record["training"]["best"] == {"step": 1, "eval_samples": 6.0}
    assert record["training"]["stopped"] == "eval_samples has not improved on 6.0000 for 2 evaluations"
    assert record["best_checkpoint"] == "step-00000001"
    # What is declared is drawn where the log has it.
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {f"{kind}{name}.png" for kind in ("", "training_") for name in ("loss", "likelihood", "samples")}


@pytest.mark.parametrize(
    ("metric", "greater", "best"), [("likelihood", True, 3), ("eval_likelihood", False, 1), ("likelihood", None, 3)]
)
def test_more_is_better_where_it_says_so(
    model_path: Path, tmp_path: Path, metric: str, greater: bool | None, best: int
) -> None:
    record = asked(tmp_path, model_path, Climbing(), metric, greater_is_better=greater)["training"]
    assert record["best"]["step"] == best


def test_the_loss_falls_whatever_else_the_algorithm_improves(model_path: Path, tmp_path: Path) -> None:
    record = asked(tmp_path, model_path, Likely(), "loss", learning_rate=0.3)["training"]
    found = [line["eval_loss"] for line in metrics(tmp_path) if "eval_loss" in line]
    assert record["best"]["eval_loss"] == min(found) < max(found)


@pytest.mark.parametrize(
    ("algorithm", "settings", "why", "taken"),
    [
        (Climbing(), {}, "`heights` is no metric that this algorithm says its evaluations give: `likelihood`", 0),
        (Climbing(), {"greater_is_better": True}, MISSING, 0),  # nobody declares it: one evaluation before training
        (Declared(), {}, MISSING, 1),  # declared wrongly: the first evaluation
    ],
)
def test_a_metric_that_evaluations_do_not_give_is_refused(
    model_path: Path, tmp_path: Path, algorithm: TorchAlgorithm, settings: dict[str, Any], why: str, taken: int
) -> None:
    with pytest.raises(RecipeError, match=f"train.metric_for_best_model: {why}"):
        asked(tmp_path, model_path, algorithm, "heights", **settings)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines() if taken else []
    assert len(lines) == taken


def test_a_part_of_what_is_held_out_improves_as_the_whole(model_path: Path, tmp_path: Path) -> None:
    class Parts(Memory):
        def measures_apart(self) -> bool:
            return True

    for data, found in ((Parts(held_out=2), ("wiki_loss", "lower", False)), (Memory(held_out=2), None)):
        run = make_run(model_path, tmp_path, data, Likely(), metric_for_best_model="eval_wiki_loss")
        if found:
            assert best_metric(run.recipe) == found
        else:
            with pytest.raises(RecipeError, match="`wiki_loss` is no metric"):
                best_metric(run.recipe)


def test_a_direction_without_a_metric_is_an_error() -> None:
    with pytest.raises(ValueError, match="set that too"):
        Train(greater_is_better=False)

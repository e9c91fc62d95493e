"""An evaluator of somebody else: it asks the model, and all else is done for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_core.errors import GymError
from gym_eval import Evaluator, Results, Score
from gym_eval.evaluating import evaluated
from gym_eval.language_model import LanguageModel
from gym_eval.log_likelihoods import Continuation
from gym_eval.options import EvalOptions


class Asks:
    """Finds out how likely one text is, and how it goes on."""

    def run(self, model: LanguageModel) -> Results:
        """Ask."""
        (found,) = model.log_likelihoods([Continuation([5, 6, 7], [8, 9])])
        (said,) = model.generate([[5, 6, 7]], 4)
        questions = {"first": found.log_prob, "second": float(len(said.tokens))}
        mean = sum(questions.values()) / 2
        return Results(
            [Score("mine", "mean", mean, None, True, None, questions)], {"said": mean}, {"mine": [questions]}
        )


class Short(Evaluator):
    """Asks two questions."""

    def build(self, **context: Any) -> Asks:
        """Return what asks them."""
        return Asks()


def test_scores_of_another_evaluator_are_compared_and_written(models: Path, tmp_path: Path) -> None:
    one, other = str(models / "one"), str(models / "other")
    options = EvalOptions(
        model=one, evaluator=Short(), compare=other, max_drop=1000.0, output=tmp_path, dtype="float32"
    )
    found = evaluated(options)
    (change,) = found.changes
    assert change.low <= change.change <= change.high and found.verdict(change) == "ok" and found.passed
    report = json.loads(found.files[-1].read_text())
    assert report["said"] == found.scores[0].value and report["gym"]["compared_with"] == "other"


def test_what_was_answered_is_kept_where_the_other_model_fails(models: Path, tmp_path: Path) -> None:
    class Once(Short):
        """Asks the first model alone."""

        def build(self, **context: Any) -> Asks:
            asks, asked = Asks(), []

            class Tired:
                def run(self, model: LanguageModel) -> Results:
                    asked.append(model)
                    if len(asked) > 1:
                        raise GymError("enough")
                    return asks.run(model)

            return Tired()  # type: ignore[return-value]

    one, other = str(models / "one"), str(models / "other")
    options = EvalOptions(model=one, evaluator=Once(), compare=other, output=tmp_path, dtype="float32")
    with pytest.raises(GymError, match="enough"):
        evaluated(options)
    (written,) = (tmp_path / "one").glob("results_*.json")
    assert json.loads(written.read_text())["said"]

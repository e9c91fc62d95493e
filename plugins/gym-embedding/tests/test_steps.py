"""The loss of a step is that of all its texts, however it is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from related_rows import ROWS, SCORED, recipe

from gym_core import DataError, GymError
from gym_embedding.objective import EmbeddingObjective
from gym_embedding.whole_step import JudgedSteps
from gym_testkit.bench import Bench


@pytest.mark.parametrize(
    "options",
    [
        {"symmetric": True, "false_negative_margin": 0.0, "matryoshka_dims": [32, 8]},
        {"pooling": "mean"},
        {"loss": "cosent"},
    ],
    ids=str,
)
def test_how_a_step_is_cut_changes_nothing(bench: Bench, options: dict[str, Any]) -> None:
    rows = SCORED if "loss" in options else ROWS
    runs = [
        bench.run(recipe(bench, rows, **options), f"{size}", batch_size=size, accumulate=6 // size, max_steps=4)
        for size in (6, 2, 1)
    ]
    for run in runs[1:]:
        for name in ("loss", "grad_norm"):
            assert run.series(name) == pytest.approx(runs[0].series(name), rel=2e-3)


@pytest.mark.parametrize("drawn", ["dropout", "noise"])
def test_what_is_embedded_before_a_step_is_what_it_trains(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, drawn: str
) -> None:
    """What is drawn for each text is the same both times, else the gradient would be that of another embedding."""
    before: list[np.ndarray] = []
    during: list[np.ndarray] = []
    judged, loss = JudgedSteps.judged, EmbeddingObjective.loss

    def seen(self: Any, step: Any, parts: Any, rank: int) -> Any:
        before.append(parts[0].states)
        return judged(self, step, parts, rank)

    def trained(self: Any, policy: Any, batch: Any) -> Any:
        def told(batch: Any) -> Any:
            states = policy(batch)
            during.append(states.detach().numpy().copy())
            return states

        return loss(self, told, batch)

    monkeypatch.setattr(JudgedSteps, "judged", seen)
    monkeypatch.setattr(EmbeddingObjective, "loss", trained)
    sections: dict[str, Any] = {
        "dropout": {"adapter": {"name": "lora", "dropout": 0.5}},
        "noise": {"model": {"path": str(bench.model()), "neftune_noise_alpha": 5}},
    }[drawn]
    bench.run(recipe(bench, ROWS) | sections, batch_size=2, accumulate=3, max_steps=2, gradient_checkpointing=True)
    assert len(before) == 2 and len(during) == 6
    assert np.array_equal(np.concatenate(before), np.concatenate(during))


def test_a_step_of_one_row_is_told(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(recipe(bench, ROWS), "one", batch_size=1, max_steps=1)
    assert "a step has one row" in capsys.readouterr().err
    bench.run(recipe(bench, ROWS), "two", batch_size=1, accumulate=2, max_steps=1)
    assert "a step has one row" not in capsys.readouterr().err


def test_an_evaluation_does_not_depend_on_batches(bench: Bench) -> None:
    data = {"sources": str(bench.file(ROWS)), "validation_sources": str(bench.file(ROWS))}
    found = [
        bench.run(recipe(bench, ROWS) | {"data": data}, f"{size}", batch_size=size, max_steps=1, eval_on_start=True)
        for size in (6, 1)
    ]
    for name in ("eval_loss", "eval_recall@1", "eval_mrr@10", "eval_ndcg@10"):
        assert found[1].series(name)[0] == pytest.approx(found[0].series(name)[0], rel=1e-5)


def test_scores_are_followed(bench: Bench) -> None:
    data = {"sources": str(bench.file(SCORED)), "validation_sources": str(bench.file(SCORED))}
    run = bench.run(recipe(bench, SCORED, loss="cosine") | {"data": data}, max_steps=40, eval_on_start=True)
    assert run.series("eval_spearman")[-1] > 0.9 > run.series("eval_spearman")[0]
    assert run.series("eval_loss")[-1] < 0.1 * run.series("eval_loss")[0]


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (SCORED, {}, "has a score, and `loss: infonce`"),
        (ROWS, {"loss": "cosent"}, "has no score, and `loss: cosent`"),
        ([{**row, "score": row["score"] * 5} for row in SCORED], {"loss": "cosine"}, "has the score"),
        (ROWS, {"matryoshka_dims": [33]}, "have 32"),
    ],
)
def test_rows_of_another_loss_are_refused(bench: Bench, rows: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        bench.run(recipe(bench, rows, **options))


def test_options_that_cannot_be_are_refused(bench: Bench) -> None:
    for options in ({"temperature": 0}, {"matryoshka_dims": [8, 8]}, {"matryoshka_dims": [0]}):
        with pytest.raises(GymError, match=next(iter(options))):
            bench.run(recipe(bench, ROWS, **options), str(options))
    assert torch.is_grad_enabled()

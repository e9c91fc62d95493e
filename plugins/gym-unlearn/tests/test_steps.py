"""What steps hold, where rows come from, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from transformers import AutoTokenizer

from gym_core import GymError, Train, execute, load_recipe
from gym_data.examples import UnpairedExample
from gym_plan.commands import plan
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.rows import make
from gym_torch.packing import PACKED
from gym_unlearn import NPO, GradientAscent
from gym_unlearn.command import unlearn
from gym_unlearn.config import Unlearning
from gym_unlearn.report.measures import lowest, recall
from gym_unlearn.report.statistics import auc, forget_quality, privacy_leakage, utility
from gym_unlearn.steps import ForgetRetainSteps


class Rows(list[UnpairedExample]):
    """Answers of several lengths."""

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        return np.array([len(each.tokens) for each in self])


def rows(forget: int, keep: int) -> Rows:
    def one(name: str, number: int, desirable: bool) -> UnpairedExample:
        length = 3 + number % 5
        return UnpairedExample(f"{name}{number}", np.zeros(length, np.int32), np.ones(length, bool), desirable)

    return Rows([one("f", n, False) for n in range(forget)] + [one("k", n, True) for n in range(keep)])


def planned(config: Unlearning, forget: int, keep: int, **train: Any) -> ForgetRetainSteps:
    return ForgetRetainSteps(config, rows(forget, keep), Train(**{"batch_size": 2, "epochs": 3, **train}), "", PACKED)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("each", [1, 3])
def test_a_step_holds_rows_of_both_kinds_in_the_proportion_that_is_said(each: int, world: int) -> None:
    source = planned(NPO(retain_per_forget=each), 4, 10, accumulate=2)
    assert source.total == 3, "an epoch is a pass over the rows to forget, which batch_size counts"
    seen = []
    for number in range(source.total):
        parts = [next(source.steps(number, rank, world)) for rank in range(world)]
        held = [one for step in parts for batch in step.batches[: len(step.batches) - step.spare] for one in batch]
        assert all(len(batch) <= 2 for step in parts for batch in step.batches)
        forget, keep = ([one for one in held if one.desirable == kind] for kind in (False, True))
        assert sorted(one.id for one in forget) == ["f0", "f1", "f2", "f3"] and len(keep) == 4 * each
        assert {one.share for one in forget} == {1 + each} and {one.share for one in keep} == {(1 + each) / each}
        seen += [one.id for one in keep]
    counts = [seen.count(f"k{n}") for n in range(10)]
    assert max(counts) - min(counts) <= 1, "none comes again before all have come"


def test_gradient_ascent_trains_on_rows_to_forget_alone() -> None:
    step = next(planned(GradientAscent(), 4, 10).steps(0))
    assert [one.desirable for batch in step.batches for one in batch] == [False, False]


@pytest.mark.parametrize(("name", "left"), [("npo", True), ("rmu", True), ("gradient_ascent", True), ("npo", False)])
def test_rows_of_a_kind_that_is_missing_are_named(bench: Bench, name: str, left: bool) -> None:
    """`left` says which label the rows have that are there."""
    data = str(bench.file(make("conversation")))
    recipe = bench.recipe(name) | {"data": {"sources": [{"name": "retain" if left else "forget", "source": data}]}}
    with pytest.raises(GymError, match="to be forgotten" if left else "to be kept"):
        bench.run(recipe)


def test_labels_of_a_column_and_of_sources_are_the_same_run(bench: Bench) -> None:
    judged = make("feedback")
    plain = [[{"messages": row["messages"]} for row in judged if row["label"] == kind] for kind in (False, True)]
    files = [str(bench.file(part)) for part in plain]
    column = str(
        bench.file([{**row, "label": kind} for kind, part in zip((False, True), plain, strict=True) for row in part])
    )
    sources = [{"name": name, "source": file} for name, file in zip(("forget", "retain"), files, strict=True)]
    runs = [
        bench.run(bench.recipe("simnpo") | {"data": data}, name)
        for name, data in (("column", column), ("sources", {"sources": sources}))
    ]
    assert runs[0].series("loss") == runs[1].series("loss")
    assert runs[0].series("forget_loss")[0] > 0 and runs[0].series("retain_loss")[0] > 0


def test_other_formats_are_read_and_options_of_the_wrong_place_are_told(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "facts.jsonl"
    file.write_text("".join(json.dumps({"q": f"What {n}?", "a": f"It {n}"}) + "\n" for n in range(4)), encoding="utf-8")
    named = {"name": "alpaca", "prompt": "q", "response": "a"}
    within = {"name": "forget", "source": {"path": str(file), "read_as": named, "samples": 3}}
    recipe = bench.recipe("gradient_ascent") | {"data": {"sources": [within]}}
    record = json.loads((bench.run(recipe).outcome.output / "run.json").read_text())
    assert record["data"]["report"]["examples"] == 3
    with pytest.raises(GymError, match="source within"):
        load_recipe(recipe | {"data": {"sources": [{"name": "forget", "source": str(file), "read_as": named}]}})


@pytest.mark.parametrize("name", ["rmu", "npo"])
def test_plain_text_is_forgotten_whole_and_reported(bench: Bench, name: str) -> None:
    texts = [{"text": f"The number of the {n}th door is {7 * n}."} for n in range(4)]
    read = {"path": str(bench.file(texts[:2])), "read_as": {"name": "text"}}
    sources = [{"name": "forget", "source": read}, {"name": "retain", "source": str(bench.file(texts[2:]))}]
    data = {"sources": sources, "cutoff": 64}
    recipe = load_recipe(bench.recipe(name) | {"data": data, "output": str(bench.root / f"text-{name}")})
    assert recipe.data is not None
    found = recipe.data.build(tokenizer=bench.model(), rows="feedback", seed=0).train
    tokenizer = AutoTokenizer.from_pretrained(bench.model())
    for number, row in enumerate(texts):
        each = found[number]
        assert each.desirable == (number > 1) and each.trained.tolist() == [False] + [True] * (len(each.tokens) - 1)
        assert tokenizer.decode(each.tokens, skip_special_tokens=True) == row["text"]
    output = execute(recipe).output
    done = CliRunner().invoke(unlearn, ["report", str(output), "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["rows"] == {"forget": 2, "retain": 2}


def test_rows_without_labels_are_told_how_to_label_them(bench: Bench) -> None:
    with pytest.raises(GymError, match=r"name: forget, source"):
        bench.run(bench.recipe("npo") | {"data": str(bench.file(make("conversation")))}, "unlabelled")


def test_a_run_made_longer_goes_on_as_one_that_was_planned_so(bench: Bench) -> None:
    recipe = bench.recipe("npo", "feedback", batch_size=3, max_steps=9) | {"scheduler": "constant"}
    whole = bench.run(recipe, "whole")
    for steps in (4, 9):
        again = {**recipe, "output": str(bench.root / "longer"), "train": {**recipe["train"], "max_steps": steps}}
        made = execute(load_recipe(again))
    assert fingerprint(made.artifact.path, ".safetensors") == fingerprint(whole.outcome.artifact.path, ".safetensors")


def test_options_that_would_do_nothing_are_told(bench: Bench) -> None:
    unread = {"name": "simnpo", "ref_model": str(bench.model())}
    twice = {"name": "npo", "retain_loss_type": "KL", "precompute_ref_log_probs": True}
    for options, why in ((unread, "does nothing here"), (twice, "in every step")):
        with pytest.raises(GymError, match=why):
            load_recipe(bench.recipe(options, "feedback"))


@pytest.mark.parametrize("name", ["npo", "rmu", "grad_diff"])
def test_a_plan_counts_rows_of_both_kinds(bench: Bench, name: str) -> None:
    recipe = bench.recipe({"name": name, "retain_per_forget": 2}, "feedback", batch_size=2, epochs=2)
    recipe["train"].pop("max_steps")
    file = bench.path("recipe.yaml")
    file.write_text(json.dumps({**recipe, "output": str(bench.root / "planned")}), encoding="utf-8")
    told = json.loads(CliRunner().invoke(plan, [str(file), "--json"], catch_exceptions=False).stdout)
    finished = bench.finished(execute(load_recipe(file)))
    assert told["steps"] == finished.metrics[-1]["step"] == 8
    assert told["tokens"] == json.loads((bench.root / "planned/run.json").read_text())["training"]["tokens"]


def test_layers_that_a_model_does_not_have_are_told(bench: Bench) -> None:
    with pytest.raises(GymError, match="no layer 7"):
        bench.run(bench.recipe({"name": "rmu", "layer": 7}, "feedback"))


def test_statistics_are_those_of_their_definitions() -> None:
    assert utility([0.5, 1.0]) == pytest.approx(2 / 3) and utility([0.0, 1.0]) == 0
    assert auc(np.array([2.0, 1.0]), np.array([1.0, 0.0])) == pytest.approx(3.5 / 4)
    assert forget_quality(np.arange(20.0), np.arange(20.0)) == 1
    assert forget_quality(np.arange(20.0), np.arange(20.0) + 30) < 1e-6
    assert privacy_leakage(0.75, 0.5) == -0.5, "as MUSE has it: what still looks like a member is below 0"
    assert privacy_leakage(0.3, 0.6) == pytest.approx((0.7 - 0.4) / 0.4), "of AUCs of what was never seen"
    assert (
        lowest(-np.arange(1.0, 5.0)) == -4 and lowest(-np.arange(1.0, 6.0)) == -4.5 and lowest(np.array([-3.0])) == -3
    )
    assert recall("it was blue and green", "Blue, green!") == 1 and recall("blue", "blue green") == 0.5
    assert recall("", "blue") == 0 and recall("?", "?") == 1 and recall("天地", "地天") == 0.5

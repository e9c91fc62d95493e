"""Unpaired responses: what their log-ratios are measured from, whatever a step is cut into, and what it remembers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from gym_core import DataError, load_recipe
from gym_core.component import load_object
from gym_data.examples import UnpairedExample
from gym_preference import KTO
from gym_preference.unpaired.mismatched_responses import MismatchedResponses
from gym_preference.unpaired.objective import UnpairedObjective
from gym_preference.unpaired.reference_point import MeanReward, MismatchedKL
from gym_preference.unpaired.samples_with_reference_point import UnpairedSample, with_reference_point
from gym_testkit.bench import Bench, Finished
from gym_testkit.oracle import compare
from gym_testkit.team import start
from gym_torch.packing import PACKED
from gym_torch.policy import Policy
from gym_torch.source import Step


class Listed(list[UnpairedExample]):
    """Examples as data plugins have them."""

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(one.tokens) for one in self])


def drawn(count: int, seed: int = 0) -> Listed:
    """Return answers of all lengths, of which every third is good; each has tokens of its own."""
    random = np.random.default_rng(seed)
    made = Listed()
    for number in range(count):
        read, learnt = random.integers(1, 6, 2)
        tokens = np.arange(100 * number, 100 * number + read + learnt, dtype=np.int32)
        made.append(UnpairedExample(str(number), tokens, np.arange(read + learnt) >= read, number % 3 == 0))
    return made


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def recipe(bench: Bench, adapter: str | None = "lora", name: str = "kto", **options: Any) -> dict[str, Any]:
    """Return a recipe under which a policy departs from its reference, as answers to other prompts tell."""
    weights = {"undesirable_weight": 0.0} if name == "kto" else {}
    made = bench.recipe({"name": name, **weights, **options}, "feedback", learning_rate=0.03)
    return made | ({"adapter": adapter} if adapter else {})


def test_each_answer_goes_to_one_prompt_that_is_not_its_own() -> None:
    examples = drawn(17)
    mismatched = MismatchedResponses(examples, 5)
    found = [mismatched[number] for number in range(len(mismatched))]
    prompts = [int(one.tokens[0]) // 100 for one in found]
    answers = [int(one.tokens[-1]) // 100 for one in found]
    assert any(examples[answer].tokens[-1] != one.tokens[-1] for one, answer in zip(found, answers, strict=True)), "cut"
    assert prompts == list(range(17)) and sorted(answers) == prompts
    assert not any(prompt == answer for prompt, answer in zip(prompts, answers, strict=True))
    for prompt, one, length, answer in zip(examples, found, mismatched.lengths, answers, strict=True):
        room = max(examples.lengths) - (~prompt.trained).sum()
        assert len(one.tokens) == len(one.trained) == length
        assert (
            one.trained.sum() == min(examples[answer].trained.sum(), room)
            and one.desirable == examples[answer].desirable
        )


def test_no_prompt_with_a_mismatched_answer_is_longer_than_the_longest_sample() -> None:
    """A long answer behind a long prompt would ask for positions that the model may not have."""
    long = [UnpairedExample(str(n), np.arange(20, dtype=np.int32), np.arange(20) >= n, True) for n in (2, 18, 10)]
    mismatched = MismatchedResponses(Listed(long), 0)
    found = [mismatched[number] for number in range(3)]
    assert [len(one.tokens) for one in found] == mismatched.lengths.tolist()
    assert max(mismatched.lengths) == 20 and all(one.trained[-1] and one.trained.any() for one in found)


def test_one_answer_alone_has_nothing_to_be_measured_by() -> None:
    with pytest.raises(DataError, match="one sample alone"):
        MismatchedResponses(drawn(1), 0)


def test_one_answer_that_is_held_out_is_measured_from_zero() -> None:
    """A small validation split ends no run; kto_en_demo's tenth of a few rows is one."""
    reference_point = MismatchedKL(drawn(4), 0).held_out(drawn(1), 0)
    assert (reference_point.measured, reference_point.of(1, 5.0, 1.0), reference_point.name) == (None, 0.0, "kl")


def test_which_answer_goes_where_follows_from_the_seed() -> None:
    first, again, other = (MismatchedResponses(drawn(30), seed).partners.tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_the_margin_of_a_step_is_that_of_its_means_however_it_is_cut() -> None:
    whole = drawn(10)
    rewards = {one.id: float(number**2) for number, one in enumerate(whole)}
    wanted = np.mean([rewards[one.id] for one in whole if one.desirable]) - np.mean(
        [rewards[one.id] for one in whole if not one.desirable]
    )
    step = with_reference_point(Step([whole[:3], whole[3:]], 1.0), whole, 2.5)
    answers = [one for batch in step.batches for one in batch]
    assert all(isinstance(one, UnpairedSample) and one.reference_point == 2.5 for one in answers)
    assert sum(one.share * rewards[one.id] for one in answers) / len(answers) == pytest.approx(wanted)
    alike = with_reference_point(Step([whole[:1]], 1.0), whole[:1], 0.0)
    assert alike.batches[0][0].share == 0.0, "one side alone has no margin"


def test_a_mean_reward_counts_each_step_once() -> None:
    reference_point = MeanReward(drawn(2), 0)
    assert reference_point.of(0, 6.0, 2.0) == 3.0
    assert reference_point.of(1, 0.0, 1.0) == 2.0
    state = json.loads(json.dumps(reference_point.state_dict()))
    for again in (reference_point, MeanReward(drawn(2), 0)):
        again.load_state_dict(state)
        assert again.of(1, 3.0, 1.0) == 3.0, "the step is asked for again, with other rewards"
    for on in (reference_point, MeanReward(drawn(2), 0)):
        on.load_state_dict(state)
        assert on.of(2, 3.0, 1.0) == pytest.approx(9 / 4)
    assert reference_point.held_out(drawn(3), 0).of(9, 0.0, 0.0) == reference_point.mean


def test_a_step_that_is_skipped_for_its_numbers_does_not_spoil_the_mean() -> None:
    reference_point = MeanReward(drawn(2), 0)
    assert [reference_point.of(step, total, 2.0) for step, total in enumerate([6.0, math.nan, -math.inf, 2.0])] == [
        3,
        3,
        3,
        2,
    ]


def test_a_departure_is_the_mean_or_nothing() -> None:
    reference_point = MismatchedKL(drawn(4), 0)
    assert (
        reference_point.of(0, 6.0, 4.0) == 1.5
        and reference_point.of(1, -6.0, 4.0) == reference_point.of(2, -1e-9, 4.0) == 0.0
    )


@pytest.mark.parametrize("options", [{"name": "kto", "ftx": 0.3, "desirable_weight": 1.3}, {"name": "bco", "ftx": 0.3}])
def test_learning_good_answers_beside_it_agrees_with_the_oracle(bench: Bench, options: dict[str, Any]) -> None:
    value, gradient = compare(load_recipe(bench.recipe(options, "feedback")), bench)
    assert value <= 1e-5 and gradient <= 1e-4


def test_answers_are_measured_from_what_their_step_says(bench: Bench) -> None:
    objective = UnpairedObjective(KTO(), PACKED)
    assert load_object(KTO.objective) is UnpairedObjective
    plain = objective.collate(drawn(3))
    told = objective.collate([UnpairedSample(**vars(one), reference_point=0.5, share=2.0) for one in drawn(3)])
    assert plain.columns["reference_point"].tolist() == [0, 0, 0] and told.columns["reference_point"].tolist() == [
        0.5,
        0.5,
        0.5,
    ]
    assert told.columns["desirable"].tolist() == [True, False, False] and objective.weight(told) == 3


def test_learning_good_answers_counts_what_it_does_in_llamafactory(model_path: Path) -> None:
    """There: `mean over the good ones / number of good ones * number of answers`, beside the mean of the losses."""
    whole = [
        UnpairedExample(f"{n}", np.arange(3, 9 + n % 4, dtype=np.int32), np.arange(6 + n % 4) > 2, n < 4)
        for n in range(6)
    ]
    step = with_reference_point(Step([whole[:1], whole[1:]], 1.0), whole, 0.0)
    policy = Policy(AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32))
    plain, learnt = (UnpairedObjective(KTO(ftx=ftx)) for ftx in (0.0, 0.3))
    batches = [learnt.collate(batch) for batch in step.batches]
    sums = [sum(objective.loss(policy, batch)[0] for batch in batches) / len(whole) for objective in (plain, learnt)]
    good = [learnt.collate([one]) for one in whole if one.desirable]
    nll = torch.stack([-policy(batch).mean() for batch in good])
    torch.testing.assert_close(sums[1] - sums[0], 0.3 * nll.mean() / len(good) * len(whole), rtol=1e-5, atol=1e-6)


def agree(one: Finished, other: Finished, keys: tuple[str, ...], apart: float = 1e-5) -> None:
    for key in keys:
        left, right = one.series(key), other.series(key)
        assert left == pytest.approx(right, rel=apart, abs=apart), key
        assert len(left) == len(one.metrics)


@pytest.mark.parametrize(("name", "reference_point"), [("kto", "kl"), ("bco", "delta")])
def test_how_a_step_is_cut_changes_nothing(bench: Bench, name: str, reference_point: str) -> None:
    made = recipe(bench, name=name)
    whole = bench.run(made, "whole", max_steps=4, batch_size=16, accumulate=1)
    alone = bench.run(made, "alone", max_steps=4, batch_size=1, accumulate=16)
    agree(
        whole,
        alone,
        (reference_point, "loss", "rewards/margins", "rewards/chosen", "rewards/rejected", "rewards/accuracies"),
    )
    assert whole.series(reference_point)[0] == 0 and abs(whole.series(reference_point)[-1]) > 1e-3


@pytest.mark.parametrize(("name", "reference_point"), [("kto", "kl"), ("bco", "delta")])
def test_two_processes_measure_what_one_does(bench: Bench, name: str, reference_point: str) -> None:
    made = recipe(bench, name=name)
    made["train"] |= {"max_steps": 3, "batch_size": 4, "accumulate": 3}
    alone = bench.run(made, "alone")
    output, file = bench.path("shared"), bench.path("recipe.yaml")
    file.write_text(yaml.safe_dump({**made, "output": str(output)}), encoding="utf-8")
    team = start(2, str(file))
    assert team.codes(within=240) == [0, 0], team.errors()
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    agree(alone, Finished(alone.outcome, lines), (reference_point, "loss", "rewards/margins"))


@pytest.mark.parametrize("adapter", ["lora", None])
def test_a_reference_that_is_asked_once_says_the_same(bench: Bench, adapter: str | None) -> None:
    """Of answers to other prompts, too."""
    live, kept = (
        bench.run(recipe(bench, adapter, precompute_ref_log_probs=asked), str(asked), max_steps=3, learning_rate=0.01)
        for asked in (False, True)
    )
    agree(live, kept, ("kl", "loss", "rewards/margins"))
    assert live.series("kl")[-1] > 1e-3


@pytest.mark.parametrize(("name", "reference_point"), [("kto", "kl"), ("bco", "delta")])
def test_held_out_answers_are_measured_too(bench: Bench, name: str, reference_point: str) -> None:
    made = recipe(bench, None, name) | {"data": {"sources": [str(bench.data("feedback"))], "validation": 5}}
    run = bench.run(made, max_steps=4, eval_every=2, learning_rate=0.01)
    for key in ("loss", "rewards/accuracies", "rewards/margins", "rewards/chosen", reference_point):
        assert len(run.series(f"eval_{key}")) == 2, key
    if name == "bco":
        assert run.series("eval_delta")[-1] == run.series("delta")[-1]


def test_a_step_says_nothing_of_a_kind_that_it_does_not_have(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """A mean of no answers is no 0: what comes next would look as if the good answers had collapsed."""
    rows = [
        {"messages": [{"role": side, "content": "ab"} for side in ("user", "assistant")], "label": number >= 4}
        for number in range(8)
    ]
    rows.append({"messages": [*rows[0]["messages"][:1], {"role": "assistant", "content": " "}], "label": True})
    made = recipe(bench) | {"data": str(bench.file(rows))}
    bad, good = bench.run(made, max_steps=2, batch_size=4, shuffle=False, learning_rate=1e-3).metrics
    for line, there, missing in ((bad, "rejected", "chosen"), (good, "chosen", "rejected")):
        assert line[f"logps/{there}"] < 0 and f"rewards/{there}" in line
        assert not {f"logps/{missing}", f"rewards/{missing}", "rewards/margins"} & line.keys()
    said = capsys.readouterr().err
    assert "left out of 9 rows: an answer is empty (1)" in said and "fell from" not in said


@pytest.mark.parametrize(
    ("good", "bad", "weights", "said"),
    [
        (10, 10, {}, ""),
        (100, 300, {"desirable_weight": 3.5}, ""),
        (300, 100, {}, "desirable_weight: 0.333"),
        (100, 300, {"undesirable_weight": 0.5}, "desirable_weight: 1.5"),
        (10, 0, {}, "no response is undesirable"),
        (0, 10, {}, "no response is desirable"),
        (10, 90, {"undesirable_weight": 0.0}, ""),
    ],
)
def test_labels_out_of_balance_are_told(good: int, bad: int, weights: dict[str, float], said: str) -> None:
    advice = KTO(**weights).advice(good, bad)
    assert said in advice and bool(said) == bool(advice)


def test_a_run_says_so(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(recipe(bench, desirable_weight=5.0, undesirable_weight=1.0), max_steps=1)
    assert "desirable responses weigh 5.00 times" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "rows"), [("kto", "feedback"), ("tdpo2", "preference")])
def test_a_plan_is_made_without_a_reference(bench: Bench, name: str, rows: str) -> None:
    file = bench.path("recipe.yaml")
    made = bench.recipe(name, rows) | {"output": str(bench.path("run"))}
    file.write_text(yaml.safe_dump(made), encoding="utf-8")
    done = bench.gym("plan", str(file))
    assert done.returncode == 0 and "predicted peak" in done.stdout, done.stdout + done.stderr

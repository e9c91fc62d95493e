"""A loss or gradient that is not finite ends a run; the key that the error names goes on without that step."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gym_torch_bench import Crash, Event, Memory, NextToken, make_run, metrics, same, samples, state, train, weights

from gym_core import GymError, Interrupted, RecipeError
from gym_core.record import RunRecord
from gym_torch.loop.evaluation import HeldOutLoss
from gym_torch.loop.job import Job
from gym_torch.source import Dataset

SETTINGS: dict[str, Any] = {"save_every": 3, "log_every": 1, "max_steps": 10, "keep_last": 9}
BAD = 5  #: the step that holds the bad sample


class Bad(NextToken):
    """Gives the sample that starts with one token a loss that is not a number."""

    token = -1

    def loss(self, policy: Any, batch: Any) -> Any:
        total, sums = super().loss(policy, batch)
        bad = bool((batch.tokens[:, 0] == self.token).any())
        return total * float("nan") if bad else total, sums


@pytest.fixture
def culprit(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make one sample bad that comes first at step `BAD`; return its name."""
    run = make_run(model_path, tmp_path / "unused", **SETTINGS)
    steps = [ids(step) for step in Dataset(samples(24), run.recipe.train).steps(0)]
    first = next(name for name in steps[BAD - 1] if all(name not in step for step in steps[: BAD - 1]))
    token = int(samples(24)[int(first.split()[1])].tokens[0])
    monkeypatch.setattr(Bad, "token", token)
    monkeypatch.setattr("gym_torch_bench.NextToken", Bad)
    return first


def ids(step: Any) -> list[str]:
    return [example.id for batch in step.batches for example in batch]


def test_the_fix_that_the_error_names_goes_on_exactly(model_path: Path, tmp_path: Path, culprit: str) -> None:
    settings = SETTINGS | {"max_steps": BAD + 1}
    output = tmp_path / "stopped"
    with pytest.raises(GymError, match=f"gradient of model.* is not finite; samples: {culprit}") as caught:
        train(make_run(model_path, output, **settings))
    assert caught.value.problems[0].where == f"step {BAD}"
    assert len(str(caught.value).splitlines()) <= 4
    found = re.search(r"`train\.skip_steps=\[(\d+)\]`", caught.value.problems[0].fix)
    assert found and int(found[1]) == BAD
    skip = {"skip_steps": (int(found[1]),)}
    train(make_run(model_path, output, **settings, **skip))
    train(make_run(model_path, tmp_path / "asked", **settings, **skip))
    assert same(weights(output), weights(tmp_path / "asked"))
    assert same(state(output, BAD + 1)[0], state(tmp_path / "asked", BAD + 1)[0])
    assert metrics(output) == metrics(tmp_path / "asked")
    assert json.loads((output / "run.json").read_text())["training"]["skipped"] == [BAD]
    line = next(line for line in metrics(output) if line["step"] == BAD)
    assert culprit in line["skipped"] and "loss" not in line


def test_a_skipped_step_updates_nothing_and_the_schedule_goes_on(model_path: Path, tmp_path: Path) -> None:
    train(make_run(model_path, tmp_path / "all", **SETTINGS))
    train(make_run(model_path, tmp_path / "less", **SETTINGS | {"save_every": 1}, skip_steps=(4, 5)))
    whole, less = metrics(tmp_path / "all"), metrics(tmp_path / "less")
    assert less[:3] == whole[:3]
    assert [line["step"] for line in less if "skipped" in line] == [4, 5]
    rates = {line["step"]: line["learning_rate"] for line in less if "loss" in line}
    assert rates == {line["step"]: line["learning_rate"] for line in whole if line["step"] in rates}
    assert same(state(tmp_path / "less", 3)[0], state(tmp_path / "less", 5)[0])
    assert not same(weights(tmp_path / "all"), weights(tmp_path / "less"))
    report = json.loads((tmp_path / "less" / "run.json").read_text())["training"]
    losses = [line["loss"] for line in less if "loss" in line]
    assert report["mean_loss"] == pytest.approx(sum(losses) / len(losses))


@pytest.mark.parametrize("crash", [4, 6, 8])
def test_a_crash_after_a_skip_changes_nothing(model_path: Path, tmp_path: Path, crash: int) -> None:
    skip = {"skip_steps": (5,)}
    train(make_run(model_path, tmp_path / "whole", **SETTINGS, **skip))
    with pytest.raises(Crash):
        event = Event(step=crash)
        train(make_run(model_path, tmp_path / "cut", sections={"callbacks": (event,)}, **SETTINGS, **skip))
    train(make_run(model_path, tmp_path / "cut", **SETTINGS, **skip))
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_what_was_skipped_stays_skipped_without_the_key(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        event = Event(step=7)
        sections = {"callbacks": (event,)}
        train(make_run(model_path, tmp_path, sections=sections, skip_steps=(5,), **SETTINGS))
    train(make_run(model_path, tmp_path, **SETTINGS))
    assert json.loads((tmp_path / "run.json").read_text())["training"]["skipped"] == [5]


def test_a_step_that_was_taken_cannot_be_skipped(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        train(make_run(model_path, tmp_path, sections={"callbacks": (Event(step=7),)}, **SETTINGS))
    with pytest.raises(RecipeError, match="step 5 is part of the checkpoint of step 6"):
        train(make_run(model_path, tmp_path, skip_steps=(5,), **SETTINGS))
    with pytest.raises(RecipeError, match="there is no step 11, the run has 10"):
        train(make_run(model_path, tmp_path, skip_steps=(11,), **SETTINGS))


def test_no_checkpoint_ever_holds_weights_that_are_not_finite(model_path: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"save_every": 1, "learning_rate": 1e38, "warmup": 0.0}
    with pytest.raises(GymError, match=r"weights model\.\S+ hold .* since the update with samples: row") as caught:
        train(make_run(model_path, tmp_path, **settings))
    assert "train.skip_steps=[1]" in caught.value.problems[0].fix
    assert not list((tmp_path / "checkpoints").glob("step-*"))


def test_the_update_to_blame_is_named_even_when_steps_after_it_were_skipped(model_path: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"save_every": 3, "learning_rate": 1e38, "warmup": 0.0, "skip_steps": (1, 3)}
    with pytest.raises(GymError, match="since the update with samples") as caught:
        train(make_run(model_path, tmp_path, **settings))
    assert caught.value.problems[0].where == "step 2"
    assert "train.skip_steps=[1,2,3]" in caught.value.problems[0].fix


def test_the_best_checkpoint_is_kept_and_survives_resume(model_path: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {
        "keep_last": 1,
        "eval_every": 2,
        "keep_best": True,
        "learning_rate": 0.3,
        "warmup": 0.0,
        "max_steps": 6,
    }
    data = Memory(held_out=6)
    for name, crash in (("whole", None), ("cut", 3), ("late", 5)):
        if crash:
            with pytest.raises(Crash):
                event = Event(step=crash)
                train(make_run(model_path, tmp_path / name, data, sections={"callbacks": (event,)}, **settings))
        train(make_run(model_path, tmp_path / name, data, **settings))
        losses = {line["step"]: line["eval_loss"] for line in metrics(tmp_path / name) if "eval_loss" in line}
        best = min(losses, key=lambda step: losses[step])
        assert best < 6, "the bench must get worse in the end for this test to say anything"
        kept = sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir())
        assert kept == [f"step-{best:08d}", "step-00000006"]
        report = json.loads((tmp_path / name / "run.json").read_text())["training"]
        assert report["best"] == {"step": best, "eval_loss": losses[best]}
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


def test_the_best_is_named_though_the_run_was_killed_before_it_said_so(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of the last step is there then, and is not written again."""
    settings = SETTINGS | {"eval_every": 2, "keep_best": True, "max_steps": 4, "learning_rate": 1e-3}
    data, update = Memory(held_out=6), RunRecord.update

    def killed(record: RunRecord, **values: object) -> None:
        if values.get("best_checkpoint") == "step-00000004":
            raise Crash
        update(record, **values)

    with monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(RunRecord, "update", killed)
        train(make_run(model_path, tmp_path, data, **settings))
    assert json.loads((tmp_path / "run.json").read_text())["best_checkpoint"] == "step-00000002"
    train(make_run(model_path, tmp_path, data, **settings))
    assert json.loads((tmp_path / "run.json").read_text())["best_checkpoint"] == "step-00000004"


@pytest.mark.parametrize("step", [2, 4])
def test_an_evaluation_that_a_signal_broke_off_is_in_the_checkpoint_when_it_is_made_up_for(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    settings = SETTINGS | {"eval_every": 2, "save_every": 2, "keep_best": True, "keep_last": 1, "max_steps": 4}
    data, evaluate = Memory(held_out=6), HeldOutLoss.__call__

    def broken_off(evaluation: HeldOutLoss, job: Job) -> Mapping[str, float] | None:
        if job.progress.step == step:
            job.signals.received = signal.SIGTERM
        return evaluate(evaluation, job)

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(HeldOutLoss, "__call__", broken_off)
        train(make_run(model_path, tmp_path / "cut", data, **settings))
    for name in ("cut", "whole"):
        train(make_run(model_path, tmp_path / name, data, **settings))
    states = []
    for name in ("cut", "whole"):
        folder = max((tmp_path / name / "checkpoints").iterdir())
        states.append(json.loads((folder / "state.json").read_text())["progress"] | {"seconds": 0})
    assert states[0] == states[1] and states[0]["evaluated"] == 4


def test_keeping_the_best_needs_evaluations(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="best checkpoint is found by evaluating"):
        train(make_run(model_path, tmp_path, Memory(held_out=6), keep_best=True))

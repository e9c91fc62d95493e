"""`gym reproduce`: what a run recorded is carried out once more, and compared."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from drill_runs import STEPS, recipe, rows
from safetensors.torch import load_file, save_file

from gym_core import GymError, load_recipe
from gym_core.errors import FAILED
from gym_core.execution import execute
from gym_data.location import locate
from gym_drill import capsule, curve_comparison, reproduce, training_process
from gym_drill.capsule import capsule_of
from gym_drill.reproduce import DIFFERENT, ROUNDED, SAME, Plan, carried_out, planned, verdict
from gym_drill.reproduce_command import DIFFERS_IN_ROUNDING
from gym_drill.reproduce_command import reproduce as reproduce_command


def here(plan: Plan) -> int:
    """Carry a plan out in this process."""
    execute(load_recipe(plan.file))
    return 0


def again(source: capsule.Capsule, into: Path, *overrides: str, **options: Any) -> dict[str, Any]:
    plan = planned(source, overrides, into, **options)
    carried_out(plan, here)
    return verdict(plan, None)


def test_a_run_comes_out_with_the_same_bits(run: Path, tmp_path: Path) -> None:
    report = again(capsule_of(run), tmp_path / "again")
    assert report["verdict"] == SAME and report["environment"] == []
    assert report["metrics"] == {"compared": STEPS, "first": {}, "largest": {"loss": 0.0, "grad_norm": 0.0}}
    assert report["weights"] == {"difference": "", "largest": 0.0, "relative": 0.0, "sampled": False}


OTHERS: dict[str, dict[str, Any]] = {
    "dpo": {"algorithm": "dpo", "data": {"sources": [{"name": "tiny-preferences", "count": 24}]}},
    "grpo": {
        "algorithm": {"name": "grpo", "rewards": ["exact"], "max_new_tokens": 4, "group_size": 2},
        "data": {"sources": [{"name": "tiny-tasks", "task": "arithmetic", "count": 16}]},
        "adapter": None,
    },
    "an evaluation": {
        "data": {"sources": [{"name": "tiny-tasks", "count": 24}], "validation": 4},
        "train": {"eval_every": 2, "log_every": 2},
        "callbacks": [{"name": "early_stopping"}],
    },
}


@pytest.mark.parametrize("other", OTHERS)
def test_so_do_runs_of_other_recipes(other: str, tmp_path: Path) -> None:
    output = tmp_path / "run"
    execute(recipe(output, **OTHERS[other]))
    capsule.write(capsule_of(output), tmp_path / "run.capsule")
    assert again(capsule.read(tmp_path / "run.capsule"), tmp_path / "again")["verdict"] == SAME


LINES = [
    {"step": 1, "loss": 2.0, "grad_norm": 1.0},
    {"step": 2, "loss": 1.0, "grad_norm": 1.0, "margin": None},
    {"step": 2, "eval_loss": 1.0, "eval_reward": 0.5},
    {"step": 3, "skipped": ["row 1"]},
]


@pytest.mark.parametrize(
    ("at", "change", "apart"),
    [
        (1, {"seconds": 3.0}, {}),
        (1, {"margin": 2.0}, {}),
        (1, {"loss": 1.001}, {"loss": 0.001 / 1.001}),
        (2, {"eval_loss": 2.0}, {"eval_loss": 0.5}),
        (2, None, {"eval_loss": math.inf, "eval_reward": math.inf}),
        (3, None, {"skipped": math.inf}),
    ],
)
def test_figures_that_differ_and_lines_that_are_missing(
    at: int, change: dict[str, Any] | None, apart: dict[str, float]
) -> None:
    """What was held out is judged too, and a line that one side lacks is never rounding."""
    lines = [*LINES[:at], *([] if change is None else [LINES[at] | change]), *LINES[at + 1 :]]
    for then, here in ((LINES, lines), (lines, LINES)):
        found = curve_comparison.compared(then, here)
        assert {name: value for name, value in found.largest.items() if value} == pytest.approx(apart)
        assert bool(found.judged) == bool(apart) and bool(found.first) == (change != {"seconds": 3.0})
    assert curve_comparison.compared(LINES, [LINES[0], {"step": 2, "loss": 1.0, "grad_norm": 1.0}, *LINES[2:]]).first


def test_a_run_that_was_resumed_does_too(run: Path, tmp_path: Path) -> None:
    """It is left as a kill leaves it after its first checkpoint, and goes on."""
    rows(tmp_path / "rows.jsonl")
    output = tmp_path / "run"
    execute(recipe(output))
    shutil.rmtree(output / "checkpoints/step-00000004")
    shutil.rmtree(output / "model")
    record = json.loads((output / "run.json").read_text())
    (output / "run.json").write_text(json.dumps(record | {"status": "running", "trained": None, "artifact": None}))
    execute(recipe(output))
    assert json.loads((output / "run.json").read_text())["resumed"] == 1
    assert again(capsule_of(output), tmp_path / "again")["verdict"] == SAME


def test_the_first_steps_alone_are_those_of_the_whole_run(run: Path, tmp_path: Path) -> None:
    report = again(capsule_of(run), tmp_path / "again", steps=2)
    assert report["verdict"] == SAME and report["steps"] == 2
    assert report["metrics"]["compared"] == 2
    assert report["weights"]["difference"] == "" and not report["weights"]["sampled"]  # of the checkpoint there
    assert json.loads((tmp_path / "again/run.json").read_text())["training"]["steps"] == 2


def test_more_steps_than_were_reproduced_are_not_called_different(run: Path, tmp_path: Path) -> None:
    again(capsule_of(run), tmp_path / "again", steps=3)
    assert again(capsule_of(run), tmp_path / "again", steps=2)["verdict"] == SAME  # they lie there
    for steps in (None, STEPS):
        with pytest.raises(GymError, match="holds the first 3 steps of it alone"):
            planned(capsule_of(run), (), tmp_path / "again", steps)


def test_the_folder_that_one_stands_in_has_a_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at, path in ((run, "."), (run / "model", "..")):
        monkeypatch.chdir(at)
        assert capsule_of(Path(path)).folder == run


def test_what_differs_is_named_with_its_step(run: Path, tmp_path: Path) -> None:
    source = capsule_of(run)
    report = again(source, tmp_path / "again", "train.learning_rate=0.01")
    assert report["verdict"] == DIFFERENT
    assert report["metrics"]["first"]["step"] == 2  # the first loss comes before the first update
    assert report["metrics"]["first"]["metric"] in ("loss", "grad_norm")
    assert report["weights"]["difference"] and report["weights"]["relative"] > 0
    assert [each["what"] for each in report["environment"]] == ["train.learning_rate"]
    assert "different: the run, 4 lines of metrics and the weights" in reproduce.text(report)


def test_other_data_are_refused_before_the_first_step(run: Path, tmp_path: Path) -> None:
    other = rows(tmp_path / "other.jsonl", plus=2)
    with pytest.raises(GymError, match="the data had the fingerprint"):
        again(capsule_of(run), tmp_path / "again", f"data.sources={other}")
    assert not (tmp_path / "again/checkpoints").exists()
    report = again(capsule_of(run), tmp_path / "anyway", f"data.sources={other}", anyway=True)
    assert report["verdict"] == DIFFERENT


def test_so_they_are_where_callbacks_are_left_out(run: Path, tmp_path: Path) -> None:
    other = rows(tmp_path / "other.jsonl", plus=2)
    with pytest.raises(GymError, match="the data had the fingerprint"):
        again(capsule_of(run), tmp_path / "again", f"data.sources={other}", "callbacks=[]")
    report = again(capsule_of(run), tmp_path / "first", "callbacks=[]", steps=2)
    assert json.loads((tmp_path / "first/run.json").read_text())["training"]["steps"] == 2 and report["verdict"] == SAME


def test_where_it_goes_is_not_a_key(run: Path, tmp_path: Path) -> None:
    with pytest.raises(GymError, match="--into FOLDER"):
        planned(capsule_of(run), (f"output={tmp_path}",), tmp_path / "again")


def test_a_recipe_that_overwrites_is_compared_once_more_too(run: Path, tmp_path: Path) -> None:
    rows(tmp_path / "rows.jsonl")
    execute(recipe(tmp_path / "run", train={"overwrite": True}))
    for _ in range(2):
        report = again(capsule_of(tmp_path / "run"), tmp_path / "again")
        assert report["verdict"] == SAME and report["environment"] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "rows.jsonl", "run"]


def test_another_base_is_refused_too(tmp_path: Path, run: Path) -> None:
    source = capsule_of(run)
    other = capsule.Capsule(**{**vars(source), "record": source.record | {"conditions": {"the base model": "0123"}}})
    with pytest.raises(GymError, match="the base model had the fingerprint 0123"):
        again(other, tmp_path / "again")


@pytest.mark.parametrize("once", [True, False])
def test_the_reference_may_lie_elsewhere_and_be_no_other(tmp_path: Path, once: bool) -> None:
    """Also where it was asked once, before training, and is not loaded by a run that goes on."""
    for name in ("then", "moved", "other"):
        shutil.copytree(locate("tiny"), tmp_path / name)
    file = tmp_path / "other/model.safetensors"
    save_file({name: weight * 1.5 for name, weight in load_file(file).items()}, file, {"format": "pt"})
    algorithm = {"name": "dpo", "ref_model": str(tmp_path / "then"), "precompute_ref_log_probs": once}
    execute(recipe(tmp_path / "run", **OTHERS["dpo"] | {"algorithm": algorithm}))
    source = capsule_of(tmp_path / "run")
    assert again(source, tmp_path / "again", f"algorithm.ref_model={tmp_path / 'moved'}")["verdict"] == SAME
    with pytest.raises(GymError, match=r"the reference had|the model .* had"):
        again(source, tmp_path / "refused", f"algorithm.ref_model={tmp_path / 'other'}")


def test_a_reproduction_that_did_not_begin_leaves_its_folder_to_the_next(run: Path, tmp_path: Path) -> None:
    with pytest.raises(GymError, match=r"missing\.jsonl"):
        again(capsule_of(run), tmp_path / "again", f"data.sources={tmp_path / 'missing.jsonl'}")
    assert again(capsule_of(run), tmp_path / "again", "callbacks=[]")["verdict"] == SAME


def test_data_that_lie_elsewhere_are_the_same(run: Path, tmp_path: Path) -> None:
    """A capsule has no rows: they are named anew on another machine."""
    moved = shutil.copy(run.parent / "rows.jsonl", tmp_path / "moved.jsonl")
    assert again(capsule_of(run), tmp_path / "again", f"data.sources={moved}")["verdict"] == SAME


@pytest.mark.parametrize("whole", [True, False])
def test_a_difference_in_rounding_is_called_so(run: Path, tmp_path: Path, whole: bool) -> None:
    other = shutil.copytree(run, tmp_path / "run")
    file = next((other / "model").glob("*.safetensors"))
    weights = load_file(file)
    save_file({name: weight * (1 + 2**-20) for name, weight in weights.items()}, file)
    text = (other / "metrics.jsonl").read_text().replace('"loss": 0', '"loss": 0.00000001', 0)
    (other / "metrics.jsonl").write_text(text)
    source = capsule_of(other)
    source = source if whole else capsule.Capsule(**{**vars(source), "folder": None})
    report = again(source, tmp_path / "again")
    assert report["verdict"] == ROUNDED and report["weights"]["sampled"] is not whole
    assert 2**-21 < report["weights"]["relative"] < 2**-19
    assert "same within rounding (every loss" in reproduce.text(report)


def test_what_the_environment_was_is_told(run: Path, tmp_path: Path) -> None:
    source = capsule_of(run)
    record = json.loads(json.dumps(source.record))
    record["environment"]["packages"]["torch"] = "1.0"
    record["machine"]["instructions"], record["code"]["gym_sft"] = "00", "11"
    other = capsule.Capsule(**{**vars(source), "record": record})
    told = {each.what: each.then for each in planned(other, (), tmp_path / "again").told}
    assert told == {"torch": "1.0", "instructions": "00", "code of gym_sft": "11"}


def test_exit_codes_and_json(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_drill.reproduce.trained", here)
    monkeypatch.setattr("gym_drill.reproduce.carried_out", lambda plan: carried_out(plan, here))
    asked = [str(run), "--into", str(tmp_path / "again"), "--json"]
    done = CliRunner().invoke(reproduce_command, asked, catch_exceptions=False)
    assert done.exit_code == 0 and json.loads(done.stdout)["verdict"] == SAME
    line = json.loads((tmp_path / "again/metrics.jsonl").read_text().splitlines()[1])
    changed = (tmp_path / "again/metrics.jsonl").read_text().replace(repr(line["loss"]), repr(line["loss"] * 1.0001))
    (tmp_path / "again/metrics.jsonl").write_text(changed)
    done = CliRunner().invoke(reproduce_command, asked, catch_exceptions=False)
    assert done.exit_code == DIFFERS_IN_ROUNDING and json.loads(done.stdout)["metrics"]["first"]["step"] == 2
    done = CliRunner().invoke(reproduce_command, [*asked, "--tolerance", "1e-9"], catch_exceptions=False)
    assert done.exit_code == FAILED


def test_a_folder_of_another_run_is_left_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").touch()
    with pytest.raises(GymError, match="is not empty"):
        planned(capsule_of(run), (), tmp_path / "full")
    before = (run / "run.json").read_bytes()
    with pytest.raises(GymError, match="holds a run"):
        planned(capsule_of(run), (), run)
    assert (run / "run.json").read_bytes() == before


def test_steps_without_a_line_to_compare_are_refused(tmp_path: Path) -> None:
    rows(tmp_path / "rows.jsonl")
    execute(recipe(tmp_path / "run", train={"log_every": 3}))
    with pytest.raises(GymError, match=r"the first line of metrics\.jsonl is that of step 3") as told:
        planned(capsule_of(tmp_path / "run"), (), tmp_path / "again", steps=2)
    assert "--steps 3" in str(told.value)


def test_what_trains_no_weights_is_refused_by_name(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("gym_training_free")
    (tmp_path / "q.jsonl").write_text('{"question": "?", "answer": "!"}\n')
    algorithm = {"name": "training_free_grpo", "dataset": str(tmp_path / "q.jsonl"), "rewards": ["exact"]}
    model = {"backend": "openai", "path": "m", "base_url": "http://127.0.0.1:9/v1"}
    source = capsule_of(run)
    other = capsule.Capsule(**{**vars(source), "recipe": {"model": model, "algorithm": algorithm}})
    with pytest.raises(GymError, match="`training_free_grpo` trains no weights here"):
        planned(other, (), tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_weights_that_are_no_number_differ(tmp_path: Path) -> None:
    from gym_drill.weight_comparison import compared

    for name, value in (("one", 1.0), ("other", float("nan"))):
        (tmp_path / name).mkdir()
        save_file({"a": torch.full((3,), value)}, tmp_path / name / "model.safetensors")
    assert compared(tmp_path / "one", tmp_path / "other").relative == float("inf")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_run_write_its_checkpoint(tmp_path: Path, sent: signal.Signals) -> None:
    """It takes longer than `subprocess.run` waits after Ctrl-C, and is not left behind after SIGTERM."""
    begun, program = tmp_path / "begun", tmp_path / "slow.py"
    program.write_text(
        "import signal, sys, time\n"
        "def stop(number, frame):\n    time.sleep(0.6)\n    sys.exit(128 + number)\n"
        f"for number in (2, 15):\n    signal.signal(number, stop)\nopen({str(begun)!r}, 'w').close()\ntime.sleep(30)\n"
    )

    def send() -> None:
        while not begun.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), sent)

    Thread(target=send, daemon=True).start()
    assert training_process.followed([sys.executable, str(program)], os.environ) == 128 + sent

"""A run changes over to compiled layers at a step that its record names, and a resumed run at the same one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import gym_torch_compiled
import pytest
import torch
from gym_torch_bench import Crash, Event, make_run, same, train, weights
from gym_torch_two import in_two, losses
from torch import nn

from gym_core import RecipeError, Run
from gym_core.record import RunRecord
from gym_torch import DDP, FSDP
from gym_torch.compile_ahead import TRIAL, has_room, trial_printed
from gym_torch.compiled import compiled_code
from gym_torch.compiled.compiling import Trial
from gym_torch.loop.changeover import RECORD, Ahead, Changeover
from gym_torch.loop.checks import check_compiled, check_rows
from gym_torch.packing import ALONE, PACKED, PADDED

FASTER, SLOWER = Trial(2.0, 1.0, 30.0), Trial(1.0, 2.0, 30.0)


class Later(Ahead):
    """Answers when it was asked so many times."""

    def __init__(self, trial: Trial, times: int) -> None:
        self.trial, self.times, self.ended, self.left = trial, times, False, False

    def found(self) -> Trial | None:
        self.times -= 1
        return None if self.times >= 0 else self.trial

    def leave(self) -> None:
        self.left = True

    def __exit__(self, *_: object) -> None:
        self.ended = True


@pytest.fixture
def other_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have compiled layers compute a little else, as rounding would have it, and more visibly."""
    gym_torch_compiled.other_code(monkeypatch, tmp_path / "compiled")


def begun(model: Path, output: Path, step: int, event: int | None = None) -> Run:
    """Return a run that changes over after so many steps, and may crash after a later one."""
    if not (output / "run.json").exists():
        output.mkdir(parents=True)
        RunRecord(output / "run.json").update(**{RECORD: {"from_step": step}})
    sections = {"callbacks": (Event(step=event),)} if event else {}
    return make_run(model, output, sections=sections, max_steps=6, save_every=2)


@pytest.mark.parametrize("killed", [1, 3, 5])
def test_a_killed_run_ends_bit_for_bit_as_one_that_was_not(
    killed: int, model_path: Path, tmp_path: Path, other_code: None
) -> None:
    train(begun(model_path, tmp_path / "whole", 3))
    with pytest.raises(Crash):
        train(begun(model_path, tmp_path / "killed", 3, killed))
    train(begun(model_path, tmp_path / "killed", 3))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    if killed == 1:
        train(begun(model_path, tmp_path / "later", 4))
        assert not same(weights(tmp_path / "whole"), weights(tmp_path / "later"))


@pytest.mark.slow
def test_so_does_one_with_real_code(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled_code.FOLDER, str(tmp_path / "compiled"))
    train(begun(model_path, tmp_path / "whole", 3))
    for killed in (1, 5):
        with pytest.raises(Crash):
            train(begun(model_path, tmp_path / f"{killed}", 3, killed))
        train(begun(model_path, tmp_path / f"{killed}", 3))
        assert same(weights(tmp_path / "whole"), weights(tmp_path / f"{killed}"))
    assert len(list((tmp_path / "compiled").glob("layers-*/note.json"))) == 1


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("strategy", [DDP(), FSDP()], ids=["ddp", "fsdp"])
def test_several_processes_change_over_before_they_begin(
    strategy: DDP, step: int, model_path: Path, tmp_path: Path, other_code: None
) -> None:
    """Layers in shards cannot be looked at, so a run that one process began does not wait for its step either."""
    in_two(tmp_path / "two", gym_torch_compiled.member, strategy, model_path, tmp_path / "two", step)
    gym_torch_compiled.begun(tmp_path / "one", 0)
    train(make_run(model_path, tmp_path / "one", max_steps=3, accumulate=2))
    assert losses(tmp_path / "two" / "0") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert RunRecord(tmp_path / "two" / "0" / "run.json").read()[RECORD]["from_step"] == 0


def test_processes_that_cut_layers_up_compute_no_samples_one_by_one() -> None:
    with pytest.raises(RecipeError, match="one by one, and fsdp"):
        check_rows(ALONE, True)
    for layout, cut in ((ALONE, False), (PADDED, True), (PACKED, True)):
        check_rows(layout, cut)


def test_layers_that_come_to_an_accelerator_in_shards_are_not_compiled() -> None:
    with pytest.raises(RecipeError, match="fsdp brings layers to cuda in shards"):
        check_compiled(True, True, torch.device("cuda"))
    for asked, cut, device in ((True, True, "cpu"), ("auto", True, "cuda"), (True, False, "cuda")):
        check_compiled(asked, cut, torch.device(device))


@pytest.mark.parametrize(
    ("trial", "asked", "step"),
    [(FASTER, "auto", 2), (SLOWER, "auto", None), (SLOWER, True, 2), (Trial(0.0, 0.0, 0.0, "no compiler"), True, None)],
)
def test_the_step_is_recorded_before_anything_depends_on_it(
    trial: Trial, asked: bool | str, step: int | None, tmp_path: Path
) -> None:
    record, calls = RunRecord(tmp_path / "run.json"), []

    def compile_layers() -> float:
        calls.append(record.read()[RECORD]["from_step"])
        return 0.5

    ahead = Later(trial, times=2)
    with Changeover(record, compile_layers, ahead, asked) as changeover:
        for finished in range(5):
            changeover.before(finished)
    told = record.read()[RECORD]
    assert ahead.ended
    assert calls == ([] if step is None else [step])
    assert told is False if step is None else told["from_step"] == step and told["seconds_in_the_run"] == 0.5


def test_layers_that_stay_as_they_are_are_not_said_to_be_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = RunRecord(tmp_path / "run.json")
    with Changeover(record, lambda: None, Later(FASTER, 0), True) as changeover:
        changeover.before(3)
    assert record.read()[RECORD] is False and changeover.done
    assert "layers are compiled" not in capsys.readouterr().err


def test_a_run_that_ends_before_does_not_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where compiled layers were asked for, it says so and has them made for later runs, but not where it ended by an error."""
    for asked in (True, "auto"):
        ahead = Later(FASTER, times=9)
        with Changeover(RunRecord(tmp_path / "run.json"), lambda: 0.0, ahead, asked) as changeover:
            changeover.before(0)
        assert ahead.ended and ahead.times == 8 and ahead.left is (asked is True)
    assert capsys.readouterr().err.count("layers were not compiled: the run was over before") == 1
    with (
        pytest.raises(KeyboardInterrupt),
        Changeover(RunRecord(tmp_path / "run.json"), lambda: 0.0, Later(FASTER, 9), True),
    ):
        raise KeyboardInterrupt
    assert not capsys.readouterr().err


def test_what_libraries_print_at_the_end_of_the_process_is_not_what_it_found() -> None:
    line = f"{TRIAL}{json.dumps(asdict(FASTER))}"
    assert trial_printed(0, f"loading\n\n{line}\nwarning: 1 leaked object at shutdown\n") == FASTER
    assert trial_printed(1, "Traceback\nValueError: no such layer\n").error.endswith(
        "ended with 1: ValueError: no such layer"
    )
    assert trial_printed(0, "nothing").error and trial_printed(-9, "").error.endswith("ended with -9: ")
    assert not trial_printed(-9, line).pays


def test_a_model_that_the_memory_has_no_room_for_is_not_loaded_twice() -> None:
    model = nn.Linear(1000, 100, bias=False)
    assert has_room(model, free=800_000) and not has_room(model, free=799_999)
    assert not has_room(model.to("meta"))

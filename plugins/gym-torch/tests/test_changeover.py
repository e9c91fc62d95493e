"""A run changes over to compiled layers at a step that its record names, and a resumed run at the same one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gym_torch_bench import Crash, Event, make_run, same, train, weights
from torch import nn

from gym_core import Run
from gym_core.record import RunRecord
from gym_torch.loop.changeover import RECORD, Ahead, Changeover
from gym_torch.model.compiling import Trial

FASTER, SLOWER = Trial(2.0, 1.0, 30.0), Trial(1.0, 2.0, 30.0)


class Later(Ahead):
    """Answers when it was asked so many times."""

    def __init__(self, trial: Trial, times: int) -> None:
        self.trial, self.times, self.ended = trial, times, False

    def found(self, seconds: float = 0.0) -> Trial | None:
        self.times -= 1
        return None if self.times >= 0 and not seconds else self.trial

    def __exit__(self, *_: object) -> None:
        self.ended = True


@pytest.fixture
def other_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have compiled layers compute a little else, as rounding would have it, and more visibly."""

    def compiled(self: nn.Module, **_: object) -> None:
        self.register_forward_hook(lambda _module, _inputs, output: output * 1.01)

    monkeypatch.setattr(nn.Module, "compile", compiled)
    yield


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


def test_a_run_that_ends_before_waits_for_the_code_where_it_was_asked_for_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for asked in (True, "auto"):
        with Changeover(RunRecord(tmp_path / "run.json"), lambda: 0.0, Later(FASTER, times=9), asked) as changeover:
            changeover.before(0)
    assert capsys.readouterr().err.count("waiting for compiled layers") == 1
    with (
        pytest.raises(KeyboardInterrupt),
        Changeover(RunRecord(tmp_path / "run.json"), lambda: 0.0, Later(FASTER, 9), True),
    ):
        raise KeyboardInterrupt
    assert "waiting" not in capsys.readouterr().err

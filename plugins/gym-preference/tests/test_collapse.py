"""The warning that chosen answers became unlikely."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gym_preference.likelihood_displacement import LikelihoodDisplacement
from gym_torch.observer import Progress


def warnings(values: Sequence[float], watch: LikelihoodDisplacement, capsys: pytest.CaptureFixture[str]) -> list[str]:
    for step, value in enumerate(values, start=1):
        watch.logged(Progress(total=9, step=step), {"loss": 0.5, "logps/chosen": value})
    return [line for line in capsys.readouterr().err.splitlines() if "fell from" in line]


def test_a_fall_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    (told,) = warnings([-2.0, -2.9, -3.1, -3.5], LikelihoodDisplacement("logps/chosen", 0.2), capsys)
    assert "step 3: logps/chosen fell from -2.00 to -3.10" in told and "`algorithm.ftx` (now 0.2)" in told


def test_what_holds_or_gains_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert not warnings([-2.0, -1.0, -1.9, -2.9], LikelihoodDisplacement("logps/chosen", 0.2), capsys)


def test_a_run_that_goes_on_compares_with_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = LikelihoodDisplacement("logps/chosen", 0.2), LikelihoodDisplacement("logps/chosen", 0.2)
    assert not warnings([-2.0, -2.5], first, capsys)
    second.load_state_dict(first.state_dict())
    assert len(warnings([-3.2], second, capsys)) == 1
    third = LikelihoodDisplacement("logps/chosen", 0.2)
    third.load_state_dict(second.state_dict())
    assert not warnings([-3.4], third, capsys)

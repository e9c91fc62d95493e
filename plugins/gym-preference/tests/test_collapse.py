"""The warning that chosen answers became unlikely."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gym_preference.likelihood_displacement import LINES, LikelihoodDisplacement
from gym_torch.observer import Progress


def warnings(
    values: Sequence[float],
    watch: LikelihoodDisplacement,
    capsys: pytest.CaptureFixture[str],
    reference: Sequence[float] = (),
) -> list[str]:
    for step, value in enumerate(values, start=1):
        known = {"ref_logps/chosen": reference[step - 1]} if reference else {}
        watch.logged(Progress(total=9, step=step), {"loss": 0.5, "logps/chosen": value, **known})
    return [line for line in capsys.readouterr().err.splitlines() if "fell from" in line]


def test_a_fall_below_the_reference_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    (told,) = warnings([-2.0, -2.9, -3.6, -9.0], LikelihoodDisplacement(0.2), capsys, [-2.0, -2.0, -2.5, -2.0])
    assert "step 3: logps/chosen fell from -2.50 to -3.60" in told and "`algorithm.ftx` (now 0.2)" in told


def test_other_samples_are_no_fall(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines are of different samples: some are unlikely from the start, and stay as likely as they were."""
    values = np.random.default_rng(0).normal(-2.0, 1.2, 200).tolist()
    assert not warnings(values, LikelihoodDisplacement(0.2), capsys)
    assert not warnings(values, LikelihoodDisplacement(0.2), capsys, [value - 0.1 for value in values])


def test_without_a_reference_many_lines_in_a_row_are_a_fall(capsys: pytest.CaptureFixture[str]) -> None:
    (told,) = warnings([-2.0] * LINES + [-3.1] * LINES * 2, LikelihoodDisplacement(0.2), capsys)
    assert f"step {2 * LINES}: logps/chosen fell from -2.00 to -3.10" in told


def test_with_a_reference_that_follows_too(capsys: pytest.CaptureFixture[str]) -> None:
    values = [-2.0] * LINES + [-3.1] * LINES * 2
    (told,) = warnings(values, LikelihoodDisplacement(0.2, follows=True), capsys, reference=values)
    assert f"step {2 * LINES}: logps/chosen fell from -2.00 to -3.10" in told


def test_a_run_that_goes_on_compares_with_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = (LikelihoodDisplacement(0.2) for _ in range(3))
    assert not warnings([-2.0] * LINES + [-3.2] * (LINES - 1), first, capsys)
    second.load_state_dict(first.state_dict())
    assert len(warnings([-3.2], second, capsys)) == 1
    third.load_state_dict(second.state_dict())
    assert not warnings([-3.4], third, capsys)

"""Runs with adapters that look at a whole step: it does not matter how that is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_testkit.bench import Bench


@pytest.mark.proves("eva", "lora_ga")
@pytest.mark.parametrize("kind", ["lora_ga", "eva", "adalora"])
def test_how_a_step_is_cut_does_not_matter(tmp_path: Path, kind: str) -> None:
    """One batch of eight, or four of two: it begins with the same, and a penalty counts once."""
    small = Bench(tmp_path)
    adapter = {"name": kind, "rank": 4} | ({"target_rank": 2, "orth_reg_weight": 5.0} if kind == "adalora" else {})
    runs = [
        small.run(small.recipe("sft", max_steps=3, learning_rate=1e-3, **cut) | {"adapter": adapter}, f"run-{number}")
        for number, cut in enumerate([{"batch_size": 8}, {"batch_size": 2, "accumulate": 4}])
    ]
    for figure in ("loss", "grad_norm"):
        assert runs[0].series(figure) == pytest.approx(runs[1].series(figure), rel=2e-3)

"""Adapters that begin by looking at the first step: what they see there is the loss of the run, reference and all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from gym_preference.objective import PreferenceObjective
from gym_preference.pairwise.objective import PairObjective
from gym_testkit.bench import Bench


@pytest.mark.parametrize("adapter", ["lora_ga", "eva"])
@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"name": "dpo"}, "preference"),
        ({"name": "dpo", "precompute_ref_log_probs": True}, "preference"),
        ({"name": "tdpo2"}, "preference"),
        ({"name": "kto"}, "feedback"),
    ],
    ids=["dpo", "dpo-kept", "tdpo2", "kto"],
)
def test_the_first_step_is_measured_from_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], shape: str, adapter: str
) -> None:
    """Nothing is trained then, so every log-ratio is 0; without the reference it would be a whole log-probability."""
    seen: list[Tensor] = []
    ratios, summed = PreferenceObjective.log_ratios, PairObjective.summed

    def judged(self: PreferenceObjective, *asked: Any) -> tuple[Tensor, Tensor]:
        found = ratios(self, *asked)
        seen.append(found[1].detach())
        return found

    def paired(self: PairObjective, losses: Tensor, log_probs: Tensor, log_ratios: Tensor, *rest: Any) -> Any:
        seen.append(log_ratios.detach())
        return summed(self, losses, log_probs, log_ratios, *rest)

    monkeypatch.setattr(PreferenceObjective, "log_ratios", judged)
    monkeypatch.setattr(PairObjective, "summed", paired)
    bench = Bench(tmp_path)
    recipe = bench.recipe(options, shape, max_steps=2) | {"adapter": {"name": adapter, "rank": 4}}
    metrics = bench.run(recipe).metrics
    assert max(float(each.abs().max()) for each in seen[:2]) < 1e-4  # at the beginning, and in the first step
    assert metrics[-1]["rewards/margins"] != 0

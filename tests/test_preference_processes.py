"""Pairs and a reference over two processes: the numbers of one, whatever the reference is and however the model lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_testkit.bench import Bench
from gym_testkit.team import start

#: what is trained, and against what
FORMS: dict[str, dict[str, Any]] = {
    "left out": {"adapter": "lora", "algorithm": {"name": "dpo", "precompute_ref_log_probs": False}},
    "kept": {"algorithm": {"name": "dpo", "precompute_ref_log_probs": True}},
    "a second model": {"algorithm": {"name": "ipo", "precompute_ref_log_probs": False}},
}


def lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[pytest.mark.slow] * (form == "left out")) for form in FORMS]
)
def test_two_processes_compare_as_one_does(tmp_path: Path, form: str) -> None:
    bench = Bench(tmp_path)
    train = {"batch_size": 2, "accumulate": 3, "max_steps": 4}
    file = bench.path("recipe.yaml")
    file.write_text(json.dumps(bench.recipe(None, "preference", **train) | FORMS[form]))
    found = {}
    for world, strategy in ((1, "ddp"), (2, "ddp"), (2, "fsdp")):
        output = tmp_path / f"{world}-{strategy}"
        team = start(world, str(file), f"output={output}", f"distributed={strategy}")
        assert team.codes() == [0] * world, team.errors()
        found[world, strategy] = lines(output)
    alone = found.pop((1, "ddp"))
    assert alone[0]["rewards/margins"] == pytest.approx(0, abs=1e-6) and alone[-1]["kl"] > 0
    for shared in found.values():
        for one, other in zip(shared, alone, strict=True):
            for name in ("loss", "rewards/margins", "rewards/accuracies", "kl", "logps/chosen", "grad_norm"):
                assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5)

"""Mixed precision: the least error within a budget, held to an exact search."""

from __future__ import annotations

import json
import random

import pytest
import torch
from test_models import pair

from gym_bitdelta import DeltaQuant
from gym_bitdelta.config.file_size_bound import PROVENANCE, file_bytes
from gym_bitdelta.delta import file
from gym_bitdelta.encoding import Encoder
from gym_bitdelta.fit.low_rank_factors import Ranked
from gym_core import GymError
from gym_quant.post_training.mixed import cheapest


def exact(costs, sizes, budget):
    """Return the least sum of costs, trying every sum of sizes."""
    best = {0: 0.0}
    for cost, size in zip(costs, sizes, strict=True):
        reached: dict[int, float] = {}
        for before, total in best.items():
            for price, more in zip(cost, size, strict=True):
                if before + more <= budget:
                    reached[before + more] = min(reached.get(before + more, float("inf")), total + price)
        best = reached
    return min(best.values(), default=None)


def test_the_choice_is_the_exact_optimum():
    draws, feasible = random.Random(0), 0
    for _ in range(200):
        count = draws.randint(1, 6)
        sizes = [[draws.randint(1, 60) * bits for bits in (0, 1, 2, 4, 8, 16)] for _ in range(count)]
        costs = [sorted((draws.random() for _ in range(6)), reverse=True) for _ in range(count)]
        budget = draws.randint(0, sum(map(max, sizes)))
        chosen, wanted = cheapest(costs, sizes, budget), exact(costs, sizes, budget)
        assert chosen is not None and wanted is not None
        assert sum(size[place] for size, place in zip(sizes, chosen, strict=True)) <= budget
        assert sum(cost[place] for cost, place in zip(costs, chosen, strict=True)) == pytest.approx(wanted, abs=1e-9)
        feasible += any(chosen)
    assert feasible > 100


def test_a_file_keeps_to_its_budget_and_spends_it_where_it_counts(bench, tuned, tmp_path):
    base = bench.model()

    def loud(name, weight):
        """Change one layer a hundred times as much."""
        size = 0.1 if "layers.1.mlp" in name else 0.001 if "layers" in name else 0.0
        return weight + size * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name)))

    artifact = tuned(base, loud)
    options = {
        "method": "dynamic",
        "distill_steps": 0,
        "calibrate": False,
        "holdout_samples": 2,
        "calibration_samples": 2,
    }
    errors = []
    for number, most in enumerate((9_000, 14_000)):
        made = (
            DeltaQuant(max_bytes=most, **options)
            .build()
            .quantize(bench.trained(base, f"run-{number}"), artifact, tmp_path / str(most))
        )
        assert 0.8 * most <= (made.path / file.NAME).stat().st_size <= most
        found = file.read(made.path / file.NAME)
        errors.append(sum(float(record.values().square().sum()) for record in found.records.values()))
        entries = found.header.entries()
        bits = {name: getattr(entry, "bits", 0) for name, entry in entries.items()}
        assert bits["model.layers.1.mlp.up_proj.weight"] > bits["model.layers.0.mlp.up_proj.weight"]
    with pytest.raises(GymError, match="max_bytes"):
        DeltaQuant(max_bytes=500, **options).build().quantize(bench.trained(base, "no"), artifact, tmp_path / "no")


def of_low_rank():
    """Return a model and one whose layers differ from it by matrices of rank 1."""
    base, tuned = pair("untied")
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for (name, weight), before in zip(tuned.named_parameters(), base.parameters(), strict=True):
            factors = torch.randn(len(before), 1, generator=draws), torch.randn(1, before.shape[-1], generator=draws)
            weight.copy_(before + factors[0] @ factors[1] if "layers" in name and before.dim() == 2 else before)
    return base, tuned


def test_bits_that_are_named_hold_for_what_an_adapter_changed():
    named = {"layer_bits": {"*.down_proj.weight": 16}, "sensitive_layers": ["*.up_proj.weight"]}
    encoder = Encoder(DeltaQuant(calibrate=False, **named), *of_low_rank(), Ranked())
    kinds = {name: record.entry.kind for name, record in encoder.records(None).items() if "layers" in name}
    assert {kind for name, kind in kinds.items() if "down_proj" in name} == {"raw"}
    assert {kind for name, kind in kinds.items() if "up_proj" in name} == {"dense-q"}
    assert {kind for name, kind in kinds.items() if "gate_proj" in name} == {"lowrank-q"}
    errors = {name: error for name, error in encoder.errors.items() if "down_proj" in name or "up_proj" in name}
    assert max(errors.values()) < 1e-3


def test_an_adapter_may_stay_of_low_rank_where_that_is_best():
    base, tuned = of_low_rank()
    config = DeltaQuant(method="dynamic", max_bytes=4_000, calibrate=False)
    found = Encoder(config, base, tuned, Ranked()).records(None)
    assert "lowrank-q" in {record.entry.kind for record in found.values()}
    entries = {name: record.entry for name, record in found.items()}
    assert file_bytes(entries, config.said()) <= 4_000


def test_a_budget_leaves_room_for_what_is_measured_of_safety(bench, tuned, tmp_path, monkeypatch):
    """The evidence stands in the header; a file that is too large all the same is refused, and nothing is left."""
    (tmp_path / "harm.jsonl").write_text("".join(json.dumps({"prompt": f"how {n}?"}) + "\n" for n in range(12)))
    base = bench.model()
    options = {"method": "dynamic", "max_bytes": 24_000, "distill_steps": 0, "calibrate": False, "holdout_samples": 2}
    asked = {"safety_prompts": str(tmp_path / "harm.jsonl"), "safety_max_new_tokens": 2, "calibration_samples": 2}
    config, artifact = DeltaQuant(**options, **asked), tuned(base)
    made = config.build().quantize(bench.trained(base), artifact, tmp_path / "delta")
    evidence = file.header_of(made.path / file.NAME).provenance["safety"]
    assert len(json.dumps(json.dumps(evidence))) < 4096 < config.declared_bytes({}) < 8192
    assert (made.path / file.NAME).stat().st_size <= 24_000
    monkeypatch.setattr(DeltaQuant, "provenance", lambda self: dict(PROVENANCE))  # as if nothing were measured
    with pytest.raises(GymError, match="above max_bytes: 24,000"):
        config.build().quantize(bench.trained(base, "again"), artifact, tmp_path / "large")
    assert not (tmp_path / "large").exists()

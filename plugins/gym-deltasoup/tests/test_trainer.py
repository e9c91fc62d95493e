"""A run becomes part of a community: `trainer.apply_deltasoup()`, and `enable_deltasoup: true` in a recipe."""

from __future__ import annotations

import json

import pytest
import torch
from soup_models import tuned

from gym_bitdelta import BitDelta
from gym_core import Artifact, GymError
from gym_deltasoup import DeltaSoup
from gym_torch.checkpoints.open_artifact import open_artifact

PAGE = """
from gym import Trainer, TrainingConfig

trainer = Trainer(config)

# Train model
trainer.train()

# Apply community improvements
trainer.apply_deltasoup()

# Export
trainer.export("model.safetensors")
"""


def test_a_trainer_merges_what_others_contributed_and_exports_that(bench, tmp_path, monkeypatch):
    from gym import Trainer

    monkeypatch.chdir(tmp_path)
    recipe = bench.recipe("sft", max_steps=1)
    with pytest.raises(GymError, match="nothing has been trained"):
        Trainer(recipe).apply_deltasoup()
    other = Trainer({**recipe, "output": str(tmp_path / "runs/other run")})
    other.train()
    soup = DeltaSoup()
    soup.contribute("other", other.outcome.artifact)
    soup.close()
    recipe = bench.recipe("sft", max_steps=3, seed=5, learning_rate=0.003)
    exec(PAGE, {"config": {**recipe, "output": str(tmp_path / "runs/mine")}})
    report = json.loads((tmp_path / "soup/rounds/1/report.json").read_text())
    assert report["accepted"] == ["mine", "other"] and sum(report["rewards"]["points"].values()) == 1000
    merged = open_artifact(Artifact.read(tmp_path / "soup/rounds/1/model")).merged().state_dict()
    written = open_artifact(Artifact(tmp_path / "model.safetensors")).merged().state_dict()
    assert all(torch.allclose(written[name], merged[name], atol=1e-6) for name in merged)


def test_deltas_of_a_recipe_are_contributed_and_merged(bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GYM_SOUP", str(tmp_path / "community"))
    base = bench.model()
    options = BitDelta(distill_steps=0, enable_deltasoup=True)
    options.check()
    run = bench.trained(base)
    for seed, name in enumerate(("anna", "bert")):
        model = Artifact(tuned(base, tmp_path / name, seed), details={"base": str(base)})
        run.output = tmp_path / "runs" / name
        options.build().quantize(run, model, tmp_path / f"delta-{name}")
    report = json.loads((tmp_path / "community/rounds/1/report.json").read_text())
    assert report["accepted"] == ["anna", "bert"] and report["published"] == "result"
    assert open_artifact(Artifact.read(tmp_path / "community/rounds/1/model")).merged() is not None

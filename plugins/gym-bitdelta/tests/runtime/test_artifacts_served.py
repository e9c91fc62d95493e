"""What a run made of a user's data is served beside its base as it is when it is opened."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from gym_bitdelta.runtime.tenant_model import TenantModel
from gym_core import execute, load_recipe
from gym_torch.checkpoints.open_artifact import open_artifact

QUICK = {"distill_steps": 0, "holdout_samples": 4, "calibration_samples": 4}


@pytest.mark.parametrize("quantization", [{"name": "bitdelta", "group_size": 16}, {"name": "deltaquant"}])
@torch.no_grad()
def test_a_run_is_served_as_it_is_opened(bench, tmp_path, quantization):
    recipe = bench.recipe("sft", max_steps=2) | {"quantization": quantization | QUICK, "output": str(tmp_path / "run")}
    with torch.enable_grad():
        made = execute(load_recipe(recipe)).artifact
    tokens = torch.tensor([[5, 3, 8, 1], [9, 2, 2, 7]])
    base = AutoModelForCausalLM.from_pretrained(bench.model(), dtype=torch.float32).eval()
    plain = base(tokens).logits
    served = TenantModel(base, lambda name: tmp_path / name / "quantized")
    with served.serving(["run", None]):
        found = served.model(tokens).logits
    alone = open_artifact(made).model(tokens).logits
    assert torch.allclose(found[0], alone[0], atol=1e-5) and torch.allclose(found[1], plain[1], atol=1e-5)
    assert not torch.allclose(alone[0], plain[0], atol=1e-5)

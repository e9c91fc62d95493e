"""Adapters exported with `safetensors`: merged into a plain model that agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from gym_adapters import Freeze, LoRA
from gym_core import Adapter
from gym_torch import SafetensorsExporter


@pytest.mark.parametrize(
    "config", [LoRA(rank=3), LoRA(modules="embed_tokens,lm_head,q_proj"), LoRA(extra="embed_tokens"), Freeze(layers=1)]
)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 0.05)])
def test_merged_export(bench: Any, config: Adapter, dtype: torch.dtype, bound: float, tmp_path: Path) -> None:
    bench.base(dtype=dtype).save_pretrained(tmp_path / "stored")
    adapted = config.build(model=AutoModelForCausalLM.from_pretrained(tmp_path / "stored", dtype=torch.float32), seed=0)
    bench.train(adapted.model)
    artifact = adapted.save(tmp_path / "saved", str(tmp_path / "stored"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "stored").iterdir()}
    written = SafetensorsExporter().build().export(artifact, tmp_path / "export")
    plain = AutoModelForCausalLM.from_pretrained(written)
    assert plain.dtype == dtype
    expected = bench.logits(adapted.model)
    assert (bench.logits(plain.float()) - expected).norm() / expected.norm() < bound
    assert json.loads((written / "certificate.json").read_text())["relative_difference"] < bound
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "stored").iterdir()}

"""Adapters exported with `safetensors`: merged into a plain model that agrees."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from gym_adapters import Freeze, LoRA
from gym_export import SafetensorsExporter
from gym_torch.kinds import Adapter


@pytest.mark.parametrize(
    "config",
    [
        LoRA(rank=3),
        LoRA(target_modules="embed_tokens,lm_head,q_proj"),
        LoRA(modules_to_save="embed_tokens"),
        Freeze(trainable_layers=1),
    ],
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


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of a process can be reset on Linux alone"
)
def test_neither_model_is_ever_in_memory_as_a_whole(tmp_path: Path) -> None:
    shape = Qwen3Config(
        vocab_size=8192, hidden_size=1024, intermediate_size=3072, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, head_dim=128, tie_word_embeddings=True, dtype="bfloat16",
    )  # fmt: skip
    base = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    size = sum(weight.numel() * weight.element_size() for weight in base.parameters())
    base.save_pretrained(tmp_path / "base")
    adapted = LoRA(rank=4).build(model=base, seed=0)
    artifact = adapted.save(tmp_path / "lora", str(tmp_path / "base"))
    del base, adapted
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is there
    before = memory("VmRSS")
    SafetensorsExporter().build().export(artifact, tmp_path / "export")
    # Libraries that are imported meanwhile, and pages of files that are read, take a model's worth; one beside them is more.
    assert memory("VmHWM") - before < 1.25 * size


def memory(name: str) -> int:
    """Return a figure of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

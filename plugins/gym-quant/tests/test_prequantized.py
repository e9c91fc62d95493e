"""What `gym quantize` writes is a base for adapters: the same logits as in plain transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from gym_core import Artifact
from gym_quant import FP8, RTN
from gym_testkit.bench import Bench
from gym_torch.model import mapped_weights
from gym_torch.model.quantized_weights import quantized_layers

TOKENS = torch.tensor([[5, 3, 8, 1, 9, 2, 2, 7]])


@pytest.mark.parametrize(
    "quantizer", [RTN(bits=4, group_size=32), RTN(bits=3, group_size=32), FP8()], ids=["4", "3", "fp8"]
)
def test_a_quantized_model_is_a_base_for_adapters(quantizer: Any, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    bench = Bench(tmp_path)
    base = bench.model_of(64, 128)
    made = quantizer.build().quantize(bench.trained(base), Artifact(base), tmp_path / "quantized")
    plain = AutoModelForCausalLM.from_pretrained(made.path, dtype=torch.float32).eval()
    model = mapped_weights.load(made.path, dtype=torch.float32)
    assert quantized_layers(model)
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS).logits, plain(TOKENS).logits, atol=1e-5, rtol=1e-4)
    trained = bench.run(bench.recipe("sft") | {"model": str(made.path), "adapter": "lora"}, "adapted")
    assert trained.outcome.artifact.kind == "adapter"

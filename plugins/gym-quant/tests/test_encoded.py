"""What `gym quantize` writes is a base for adapters: the same logits as in plain transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gym_core import Artifact, GymError
from gym_quant import FP8, HQQ, RTN, Encoded, Quanto
from gym_testkit import warm
from gym_testkit.bench import Bench
from gym_torch.model import mapped_weights
from gym_torch.quantization.weights import quantized_layers

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


ASK = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
path, into = sys.argv[1:]
try:
    AutoModelForCausalLM.from_pretrained(path)
except ValueError as error:
    assert "quant_method" in str(error)
else:
    raise SystemExit("plain transformers has loaded something")
from gym_torch.model import mapped_weights
with torch.no_grad():
    save_file({"logits": mapped_weights.load(Path(path)).eval()(torch.tensor([[5, 3, 8, 1, 9, 2, 2, 7]])).logits}, into)
"""


@pytest.mark.parametrize("encoder", [HQQ(bits=3), Quanto()], ids=["hqq", "quanto"])
def test_what_a_quantizer_of_loaded_models_stores_is_a_model_for_gym(encoder: Any, tmp_path: Path) -> None:
    """The same logits in a fresh process as in memory, with adapters too; plain transformers refuses it."""
    torch.set_num_threads(1)
    bench = Bench(tmp_path)
    base = bench.model_of(64, 128)
    run = bench.trained(base)
    made = Encoded(quantizer=encoder).build().quantize(run, Artifact(base), tmp_path / "quantized")
    in_memory = mapped_weights.load(base, quantizer=encoder).eval()
    with torch.no_grad():
        wanted = in_memory(TOKENS).logits
    asked = warm.run("-c", ASK, str(made.path), str(tmp_path / "logits"))
    assert asked.returncode == 0, asked.stderr
    assert torch.equal(load_file(tmp_path / "logits")["logits"], wanted)
    told = json.loads((made.path / "quantization.json").read_text())
    assert told["holdout"]["kl"] > 0 and 3 < told["bits_per_weight"] < 8
    with pytest.raises(GymError, match="quantized already"):
        Encoded(quantizer=encoder).build().quantize(run, made, tmp_path / "again")
    trained = bench.run(bench.recipe("sft") | {"model": str(made.path), "adapter": "lora"}, "adapted")
    assert trained.outcome.artifact.kind == "adapter"

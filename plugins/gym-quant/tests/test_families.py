"""Families: what is computed layer by layer, scaled and written is the model, whatever its norms and projections are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gym_core import Artifact, GymError
from gym_quant import AWQ, RTN
from gym_testkit.architectures import FAMILIES, SHAPE
from gym_testkit.tiny import VOCABULARY

TOKENS = torch.arange(30)[None] * 7 % 256


def write(bench, path: Path, name: str) -> Path:
    """Write a random model of a family, with the tokenizer of the tiny one."""
    options = SHAPE | {"hidden_size": 48} | FAMILIES[name] | {"vocab_size": VOCABULARY}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(options.pop("type", name), **options))
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15)
    model.save_pretrained(path)
    for file in bench.model().glob("*token*"):
        shutil.copy(file, path)
    shutil.copy(bench.model() / "chat_template.jinja", path)
    return path


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3_text", "phi", "phi3"])
def test_a_model_of_another_family(bench, tmp_path, name):
    base = write(bench, tmp_path / "base", name)
    quantizer, run = AWQ(bits=8, group_size=16).build(), bench.trained(base)
    made = quantizer.quantize(run, Artifact(base), run.output / "quantized")
    plain, again = (AutoModelForCausalLM.from_pretrained(path) for path in (base, made.path))
    with torch.no_grad():
        wanted, found = plain(TOKENS).logits, again(TOKENS).logits
        assert 0 < (found - wanted).norm() < 0.05 * wanted.norm(), "8 bits are near"
        plain.load_state_dict(quantizer.restore(made), strict=False)
        torch.testing.assert_close(plain(TOKENS).logits, found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "match"), [("gpt2", "no linear layers"), ("qwen3_moe", "stacks experts")])
def test_a_family_that_cannot_be_quantized_is_refused(bench, tmp_path, name, match):
    base = write(bench, tmp_path / "base", name)
    run = bench.trained(base)
    with pytest.raises(GymError, match=match):
        RTN().build().quantize(run, Artifact(base), run.output / "quantized")
    assert not (run.output / "quantized").exists()

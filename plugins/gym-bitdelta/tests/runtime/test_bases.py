"""Bases that are quantized, and tenants whose vocabulary is not that of the base."""

from __future__ import annotations

import copy

import pytest
import torch
from random_deltas import BASE, coded, merged, of_model, whole
from transformers import AutoConfig, AutoModelForCausalLM

from gym_bitdelta.delta import file, records
from gym_bitdelta.delta.layout import Dense
from gym_bitdelta.runtime.products import products
from gym_bitdelta.runtime.tenant_model import TenantModel
from gym_torch.model.quantized_loading import quantize_layer
from gym_torch.model.quantized_weights import WeightCodec

TOKENS = torch.tensor([[1, 2, 3], [7, 1, 49]])
EMBEDDING = "model.embed_tokens.weight"


class Rounded(WeightCodec):
    """Numbers as int8, a 256th each."""

    def encode(self, weight):
        return {"codes": (weight * 256).round().to(torch.int8)}

    def decode(self, stored, shape):
        return stored["codes"].float() / 256


def base():
    torch.manual_seed(0)
    options = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **options, **heads))
    return model.eval().requires_grad_(False)


@torch.no_grad()
def test_a_quantized_base_computes_its_part_and_the_delta_is_added(tmp_path):
    delta, plain, quantized = of_model(base(), 3), base(), base()
    layers = [
        name for name, module in plain.named_modules() if isinstance(module, torch.nn.Linear) and "layers" in name
    ]
    codec = Rounded()
    for name in layers:
        weight = plain.get_submodule(name).weight
        weight.copy_(codec.decode(codec.encode(weight), weight.shape))
        quantize_layer(quantized, name, quantized.get_submodule(name).weight, codec)
    file.write(tmp_path / "a", delta)
    served = TenantModel(quantized, lambda name: tmp_path / name, BASE)
    with served.serving(["a", None]):
        found = served.model(TOKENS).logits
    assert torch.allclose(found[1], plain(TOKENS).logits[1], atol=1e-5)
    wanted = merged(plain, delta)(TOKENS).logits[0]
    assert torch.allclose(found[0], wanted, atol=1e-5 * float(wanted.abs().max()))


def with_rows(model, rows):
    """Return a model whose vocabulary is cut, or filled up with zeros."""
    other = copy.deepcopy(model)
    known = other.get_input_embeddings().weight
    weight = torch.zeros(rows, known.shape[1])
    weight[: len(known)] = known[:rows]
    config = copy.deepcopy(other.config)
    config.vocab_size = rows
    made = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    made.load_state_dict({**other.state_dict(), EMBEDDING: weight, "lm_head.weight": weight})
    made.tie_weights()
    return made


@pytest.mark.parametrize("kernel", [products().name, "torch"])
@pytest.mark.parametrize("form", ["grid", "rows"])
@torch.no_grad()
def test_each_tenant_has_its_own_vocabulary(tmp_path, kernel, form):
    sizes = {"longer": 70, "shorter": 49, "same": 50}
    deltas = {}
    for name, rows in sizes.items():
        if form == "grid":
            record = coded(Dense(shape=(rows, 32), code="grid", bits=4, scales="group", group=32), rows)
        else:
            change = torch.randn(rows, 32, generator=torch.Generator().manual_seed(rows))
            record = records.raw(change, torch.arange(1, rows, 3))
        deltas[name] = whole({EMBEDDING: record})
        file.write(tmp_path / name, deltas[name])
    tokens = torch.tensor([[1, 69, 3], [4, 48, 7], [8, 49, 9], [1, 2, 3]])
    rows = ["longer", "shorter", "same", None]
    served = TenantModel(base(), lambda name: tmp_path / name, BASE, kernel=kernel)
    with served.serving(rows):
        found = served.model(tokens).logits
    assert found.shape[-1] == 70
    for row, name in enumerate(rows):
        size = sizes.get(name, 50)
        alone = merged(with_rows(base(), size), deltas[name]) if name else base()
        assert torch.allclose(found[row, :, :size], alone(tokens[row : row + 1]).logits[0], atol=1e-5)
        assert (found[row, :, size:] == -torch.inf).all()

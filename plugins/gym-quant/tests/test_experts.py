"""Mixtures of experts: every matrix of the stacked tensors is quantized, and LoRA of experts trains beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GptOssConfig, PretrainedConfig, PreTrainedModel, Qwen3MoeConfig

from gym_adapters import ExpertLoRA, LoRA
from gym_core import Quantizer
from gym_quant import HQQ, Bnb4bit, Bnb8bit
from gym_torch import Transformers
from gym_torch.memory.gradient_checkpointing import recompute_layers
from gym_torch.model import mapped_weights
from gym_torch.model.empty_model import empty
from gym_torch.quantization.weights import stored_modules

TOKENS = torch.arange(3, 51).view(2, 24)
SHAPE = Qwen3MoeConfig(
    vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
    num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128, tie_word_embeddings=True, initializer_range=0.1,
)  # fmt: skip


#: transposed, with biases, and a gate of its own
TRANSPOSED = GptOssConfig(
    vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
    num_local_experts=4, num_experts_per_tok=2, intermediate_size=96, pad_token_id=0, initializer_range=0.1,
)  # fmt: skip


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(SHAPE, tmp_path_factory.mktemp("mixture"))


def made(shape: PretrainedConfig, path: Path) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(shape).save_pretrained(path)
    return path


def loaded(path: Path, quantizer: Quantizer | None) -> PreTrainedModel:
    return mapped_weights.load(path, dtype=torch.float32, quantizer=quantizer)


def held(model: PreTrainedModel) -> int:
    """Return the bytes of weights and buffers."""
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("quantizer", [Bnb4bit(), HQQ(bits=3)], ids=["bnb_4bit", "hqq"])
def test_experts_take_the_bits_that_are_declared(mixture: Path, quantizer: Quantizer) -> None:
    model, plain = loaded(mixture, quantizer), loaded(mixture, None)
    names = {name for name, weight in plain.named_parameters() if weight.dim() == 3}
    assert len(names) == 4 and not names & dict(model.named_parameters()).keys()
    assert model.model.layers[0].mlp.gate.weight.dtype == torch.float32, "the router is what it was"
    shapes = {name: tuple(plain.get_parameter(name).shape) for name in names}
    stored = sum(t.nbytes for name, m in stored_modules(model).items() if "experts" in name for t in m.buffers())
    assert stored == quantizer.declared_bytes(shapes)
    assert held(model) < 0.25 * held(plain)
    planned = empty(Transformers(path=str(mixture), quantization=quantizer), "fp32", None, torch.device("cpu")).model
    assert abs(held(planned) / held(model) - 1) < 0.02


def test_they_compute_with_what_is_decoded(mixture: Path) -> None:
    model, plain = loaded(mixture, HQQ()), loaded(mixture, None)
    with torch.no_grad():
        for name, module in stored_modules(model).items():
            plain.set_submodule(name, module.plain(torch.float32))
        torch.testing.assert_close(model(TOKENS).logits, plain(TOKENS).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("whole", [(), ("down_proj",)], ids=["all stored", "one tensor whole"])
def test_lora_of_experts_is_read_beside_the_base_as_it_was(mixture: Path, whole: tuple[str, ...]) -> None:
    """Exports and peft put it there. peft wraps tensors in the order of the family, and files hold them in another."""
    beside_stored, beside_whole = (
        ExpertLoRA(rank=2).build(model=loaded(mixture, quantizer), seed=0)
        for quantizer in (Bnb8bit(modules_to_not_convert=whole), None)
    )
    beside_whole.load(beside_stored.state())
    found = [name for name, _ in beside_stored.model.named_parameters() if "lora_" in name]
    assert found == [name for name, _ in beside_whole.model.named_parameters() if "lora_" in name]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_lora_of_experts_has_the_gradients_of_decoded_ones(mixture: Path, checkpointing: bool) -> None:
    found = {}
    for kind in ("stored", "decoded"):
        model = loaded(mixture, Bnb4bit())
        if kind == "decoded":
            for name, module in stored_modules(model).items():
                model.set_submodule(name, module.plain(torch.float32))
        adapted = ExpertLoRA(rank=2, target_modules="q_proj").build(model=model, seed=0)
        assert len([weight for weight in model.parameters() if weight.requires_grad]) == 2 * (2 * 2 + 2)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.05, generator=torch.Generator().manual_seed(weight.numel()))
        recompute_layers(model.train(), checkpointing)
        loss = model(TOKENS, labels=TOKENS).loss
        loss.backward()
        found[kind] = [loss.detach(), *(w.grad for w in model.parameters() if w.requires_grad)]
        with torch.no_grad():
            merged = adapted.merged()(TOKENS).logits
            torch.testing.assert_close(merged, model.eval()(TOKENS).logits, atol=1e-4, rtol=1e-3)
    for one, other in zip(found["stored"], found["decoded"], strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-3)


def test_all_but_what_is_stored_keeps_its_name_and_takes_what_is_put_there(tmp_path: Path) -> None:
    """Biases are where they were, of the layer that computes too; a layer that lies the other way is adapted as it lies."""
    path = made(TRANSPOSED, tmp_path)
    model, plain = loaded(path, HQQ()), loaded(path, None)
    kept = [name for name in plain.state_dict() if not name.endswith(("_proj", "_proj.weight"))]
    assert [name for name in model.state_dict() if "stored_" not in name] == kept
    assert "model.layers.0.mlp.experts.down_proj_bias" in kept
    experts = model.get_submodule("model.layers.0.mlp.experts")
    experts.down_proj_bias = torch.nn.Parameter(torch.ones(4, 64))
    adapted = ExpertLoRA(rank=2).build(model=model, seed=0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.05, generator=torch.Generator().manual_seed(weight.numel()))
        found, merged = model(TOKENS).logits, adapted.merged()
        assert bool((merged.model.layers[0].mlp.experts.down_proj_bias == 1).all())
        torch.testing.assert_close(merged(TOKENS).logits, found, atol=1e-4, rtol=1e-3)


def test_attention_alone_may_be_adapted_over_stored_experts(mixture: Path) -> None:
    model = loaded(mixture, Bnb8bit())
    LoRA(rank=2, target_modules="q_proj,v_proj").build(model=model, seed=0)
    model.train()(TOKENS, labels=TOKENS).loss.backward()
    assert all(
        weight.grad is not None and weight.grad.isfinite().all()
        for weight in model.parameters()
        if weight.requires_grad
    )

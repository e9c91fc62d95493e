"""What LoRA learns over a base in 4 bits: as much as over one in bf16. `benchmarks/qlora.py` measures it for every method."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from gym_adapters import LoRA
from gym_core import Quantizer
from gym_quant import HQQ, Bnb4bit
from gym_torch.model import mapped_weights
from gym_torch.quantization.weights import stored_modules

SHAPE = Qwen3Config(
    vocab_size=32, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, initializer_range=0.1,
    pad_token_id=None, bos_token_id=None, eos_token_id=None,
)  # fmt: skip
NUMBERS, SMALL = 16, 4
#: A number and how far to count: the base knows the numbers further up, the adapter is to learn those further down.
X, D = (part.flatten() for part in torch.meshgrid(torch.arange(NUMBERS), torch.arange(1, SMALL + 1), indexing="ij"))
QUESTIONS = torch.stack([X, NUMBERS + D], 1)
UP, DOWN = (X + D) % NUMBERS, (X - D) % NUMBERS


def scores(model: PreTrainedModel) -> Tensor:
    """Return what a model says of each answer, computed as a run in bf16 does."""
    with torch.autocast("cpu", torch.bfloat16):
        found: Tensor = model(QUESTIONS, logits_to_keep=1).logits[:, -1]
    return found.float()


def learn(model: PreTrainedModel, answers: Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=0.01)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    for _ in range(steps):
        functional.cross_entropy(scores(model.train()), answers).backward()
        optimizer.step()
        optimizer.zero_grad()
        decay.step()


@torch.no_grad()
def accuracy(model: PreTrainedModel, answers: Tensor) -> float:
    return float((scores(model.eval()).argmax(-1) == answers).float().mean())


def learned(base: Path, quantizer: Quantizer | None) -> tuple[PreTrainedModel, float]:
    """Train LoRA over a base; return it, and how much more it gets right than before."""
    model = mapped_weights.load(base, quantizer=quantizer)
    before = accuracy(model, DOWN)
    assert before < 0.1 and accuracy(model, UP) > 0.95, "the base knows the one and not the other"
    LoRA(rank=8).build(model=model, seed=0)
    learn(model, DOWN, 40)
    return model, accuracy(model, DOWN) - before


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model in bf16 that counts up."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(SHAPE)
    learn(model, UP, 60)
    path = tmp_path_factory.mktemp("base")
    model.to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def gain(base: Path) -> float:
    """Return what LoRA over the base in bf16 gains."""
    return learned(base, None)[1]


@pytest.mark.parametrize("quantizer", [Bnb4bit(), HQQ(bits=4)], ids=["bnb_4bit", "hqq"])
def test_four_bits_gain_what_bf16_does_and_take_what_is_declared(base: Path, gain: float, quantizer: Quantizer) -> None:
    model, found = learned(base, quantizer)
    assert gain > 0.8 and found >= 0.95 * gain
    stored = stored_modules(model)
    shapes = {name: tuple(weight().shape) for name, each in stored.items() for weight in each.plain_weights().values()}
    held = sum(tensor.nbytes for module in stored.values() for tensor in module.buffers(recurse=False))
    assert len(shapes) == 14 and abs(quantizer.declared_bytes(shapes) / held - 1) <= 0.02

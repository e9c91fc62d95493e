"""Packed = unpacked, and a shared prefix = a repeated one: values and gradients, for every architecture."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from gym_torch_bench import Sample
from gym_torch_packed import Lineage, assert_equal, losses, separate, shared
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from transformers import AutoModelForCausalLM

from gym_testkit import architectures
from gym_torch.attention.segment_attention import NAME, segment_attention
from gym_torch.batch import packed, padded
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED, PADDED
from gym_torch.policy import Policy
from gym_torch.segment_spans import Spans


@pytest.mark.parametrize("batch_of", [separate(), shared()], ids=["separate", "shared prefix"])
@pytest.mark.parametrize("name", architectures.FAMILIES)
def test_packed_is_unpacked(name: str, batch_of: Lineage) -> None:
    model = architectures.build(name)
    wanted = losses(model, batch_of, padded)
    assert layout_for(model) is PACKED
    assert model.config._attn_implementation == NAME
    assert_equal(losses(model, batch_of, packed), wanted)


@pytest.mark.parametrize("batch_of", [separate(), shared()], ids=["separate", "shared prefix"])
def test_one_sample_a_pass_is_the_same_again(batch_of: Lineage) -> None:
    model = architectures.build("qwen3")
    examples, prefixes = batch_of
    spans = Spans([len(example.tokens) for example in examples], prefixes)
    alone = []
    for number in range(len(examples)):
        lineage = spans.lineage(number)
        whole = Sample(
            "whole",
            np.concatenate([examples[part].tokens for part in lineage]),
            np.concatenate([examples[part].trained & (part == number) for part in lineage]),
        )
        alone.append(Policy(model)(padded([whole])).sum())
    model.set_attn_implementation(NAME)
    batch = packed(*batch_of)
    each = torch.zeros(len(examples)).index_add(0, batch.target_segment, Policy(model)(batch))
    torch.testing.assert_close(each, torch.stack(alone), rtol=1e-5, atol=1e-5)


def test_checkpointing_and_lora_change_nothing() -> None:
    plain = architectures.build("qwen3")
    model = copy.deepcopy(plain)
    get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    wanted = losses(model, shared(), padded)
    assert layout_for(model) is PACKED
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert_equal(losses(model.train(), shared(), packed), wanted)


def test_no_gradient_reaches_below_the_first_trained_layer() -> None:
    model = architectures.build("qwen3").train()
    assert layout_for(model) is PACKED
    first, last = model.model.layers
    model.requires_grad_(False)
    last.requires_grad_(True)
    leaving: list[bool] = []
    for layer in (first, last):
        layer.register_forward_hook(lambda _module, _inputs, output: leaving.append(output.requires_grad))
    found, _ = losses(model, shared(), packed)
    assert leaving[-2:] == [False, True] and float(found.sum()) > 0
    trained = [name for name, weight in model.named_parameters() if weight.grad is not None]
    assert trained and all(name.startswith("model.layers.1.") for name in trained)


def test_a_model_that_mixes_tokens_otherwise_is_padded() -> None:
    model = architectures.build("qwen3")
    last = model.model.layers[1].mlp

    def mix(_module: object, _inputs: object, output: Tensor) -> Tensor:
        return output + 0.1 * output.cumsum(1)  # a recurrent state, as linear attention keeps one

    last.register_forward_hook(mix)
    assert layout_for(model) is PADDED
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", ["gemma2", "gemma3_text", "mistral", "qwen3"])
def test_without_spans_it_is_the_attention_of_transformers(name: str) -> None:
    model = architectures.build(name)
    tokens = torch.randint(3, architectures.VOCABULARY, (3, 17))
    mask = torch.ones_like(tokens)
    mask[1, :9] = 0  # padded on the left
    wanted = model(tokens, attention_mask=mask).logits
    made = model.generate(tokens, attention_mask=mask, max_new_tokens=9, do_sample=False)
    model.set_attn_implementation(NAME)
    torch.testing.assert_close(model(tokens, attention_mask=mask).logits[mask > 0], wanted[mask > 0], rtol=0, atol=1e-4)
    assert torch.equal(model.generate(tokens, attention_mask=mask, max_new_tokens=9, do_sample=False), made)


@pytest.mark.parametrize("window", [None, 4])
def test_the_mask_of_an_accelerator_is_the_rule_of_the_cpu(window: int | None) -> None:
    examples, prefixes = shared()
    spans = Spans([len(example.tokens) for example in examples], prefixes)
    count = len(spans.owners)
    index = torch.arange(count)
    visible = spans.mask(window, torch.device("cpu"))(0, 0, index[:, None], index[None])
    query, key, value = torch.randn(1, 4, count, 8), torch.randn(1, 2, count, 8), torch.randn(1, 2, count, 8)
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value, visible, enable_gqa=True)
    found, _ = segment_attention(torch.nn.Module(), query, key, value, None, spans=spans, sliding_window=window)
    torch.testing.assert_close(found.transpose(1, 2), wanted)


@pytest.mark.parametrize("window", [None, 1, 100, 128, 300])
@pytest.mark.parametrize(
    ("lengths", "prefixes"),
    [
        ((70, 300, 513, 1), ()),
        ((200, 190, 30, 400), (None, 0, 1, 0)),
        ((128, 256, 128), (None, 0, None)),
        ((1024,), ()),
    ],
)
def test_blocks_that_someone_sees_and_those_seen_whole_are_those_of_the_rule(lengths, prefixes, window):
    spans = Spans(lengths, prefixes)
    count, device = sum(lengths), torch.device("cpu")
    found, wanted = (
        spans.block_mask(window, device),
        create_block_mask(spans.mask(window, device), None, None, count, count, device="cpu"),
    )
    for one, true in (
        (listed(found.kv_num_blocks, found.kv_indices), listed(wanted.kv_num_blocks, wanted.kv_indices)),
        (
            listed(found.full_kv_num_blocks, found.full_kv_indices),
            listed(wanted.full_kv_num_blocks, wanted.full_kv_indices),
        ),
    ):
        assert torch.equal(one, true)
    assert found.seq_lengths == wanted.seq_lengths


def listed(counts: Tensor, numbers: Tensor) -> Tensor:
    """Return which blocks `[of queries, of keys]` a mask lists."""
    seen = torch.zeros(numbers.shape[2:], dtype=torch.bool)
    for row, (count, blocks) in enumerate(zip(counts[0, 0].tolist(), numbers[0, 0], strict=True)):
        seen[row, blocks[:count].long()] = True
    return seen


@pytest.mark.gpu
def test_the_kernel_of_an_accelerator_agrees_with_the_cpu(model_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_path)
    assert layout_for(model) is PACKED
    wanted = losses(model, shared(), packed)
    found = losses(model.cuda(), shared(), lambda *parts: packed(*parts).to(torch.device("cuda")))
    assert_equal((found[0].cpu(), found[1].cpu()), wanted)

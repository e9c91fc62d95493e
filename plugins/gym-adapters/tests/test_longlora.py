"""Shifted sparse attention: groups within a sample, no look ahead, full attention with one group and at inference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gym_adapters_families import FULL, family, own_way, samples
from torch import nn

from gym_adapters import LongLoRA
from gym_adapters.tuners.longlora import grouped, shifted_attention
from gym_core import GymError
from gym_torch.attention.segment_attention import segment_attention
from gym_torch.batch import packed, padded
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED
from gym_torch.policy import Policy
from gym_torch.segment_spans import Spans


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attend with a mask `[heads, tokens, tokens]`, in the plainest way."""
    key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value))
    scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


def seen(lengths: tuple[int, ...], groups: int, shift: bool) -> torch.Tensor:
    """Whether token i attends to token j, from the definition: same sample, same group, not later."""
    total = sum(lengths)
    mask, start = torch.zeros(total, total, dtype=torch.bool), 0
    for length in lengths:
        size = -(-length // groups)
        half = size // 2 if shift and size < length else 0
        group = [(at - half) // size for at in range(length)]
        for i in range(length):
            for j in range(i + 1):
                mask[start + i, start + j] = group[i] == group[j]
        start += length
    return mask


@pytest.mark.proves("longlora")
@pytest.mark.parametrize(("heads", "kv"), [(4, 2), (4, 4), (4, 1), (6, 3), (3, 3)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_it_is_the_definition(heads: int, kv: int, groups: int) -> None:
    lengths = (12, 1, 7, 16)
    total = sum(lengths)
    query, key, value = random(1, heads, total, 8), random(1, kv, total, 8, seed=1), random(1, kv, total, 8, seed=2)
    spans = Spans(lengths)
    found, _ = shifted_attention(nn.Module(), query, key, value, None, shifted=grouped(spans, groups), spans=spans)
    halves = [seen(lengths, groups, shift=False)] * (heads // 2) + [seen(lengths, groups, shift=True)] * (
        heads - heads // 2
    )
    torch.testing.assert_close(found, plain(query, key, value, torch.stack(halves)))


@pytest.mark.proves("longlora")
def test_one_group_is_full_attention() -> None:
    query, key, value, spans = (
        random(1, 4, 20, 8),
        random(1, 2, 20, 8, seed=1),
        random(1, 2, 20, 8, seed=2),
        Spans((14, 6)),
    )
    found, _ = shifted_attention(nn.Module(), query, key, value, None, shifted=grouped(spans, 1), spans=spans)
    wanted, _ = segment_attention(nn.Module(), query, key, value, None, spans=spans)
    torch.testing.assert_close(found, wanted)


@pytest.mark.proves("longlora")
def test_no_token_sees_a_later_one_or_another_sample() -> None:
    """In the reference the shifted half wraps around, and the first tokens see the last."""
    spans = Spans((16, 16))
    value = random(1, 4, 32, 8, seed=2).requires_grad_()
    out, _ = shifted_attention(
        nn.Module(),
        random(1, 4, 32, 8),
        random(1, 4, 32, 8, seed=1),
        value,
        None,
        shifted=grouped(spans, 4),
        spans=spans,
    )
    for token in (0, 1, 5, 16, 20):
        (gradient,) = torch.autograd.grad(out[0, token].sum(), value, retain_graph=True)
        reached = gradient.abs().sum((0, 1, 3)).nonzero().flatten().tolist()
        assert token in reached and all(token // 16 * 16 <= other <= token for other in reached)


@pytest.mark.proves("longlora")
@pytest.mark.parametrize("name", [name for name in FULL if name != "gpt2"])  # whose layers have other names
def test_in_training_packed_rows_are_texts_by_themselves(name: str) -> None:
    model = family(name)
    assert layout_for(model) is PACKED
    adapted = LongLoRA(rank=2, target_modules="q_proj,v_proj").build(model=model, seed=0)
    adapted.model.train()
    policy = Policy(adapted.model).train()
    for module in policy.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    texts = samples((24, 17, 8))
    together = policy(packed(texts))
    alone = torch.cat([policy(padded([text])) for text in texts])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    full = policy.eval()(packed(texts))
    assert not torch.allclose(together, full, atol=1e-3), "training attends to everything"
    adapted.model.eval()
    with adapted.disable_adapter():
        torch.testing.assert_close(
            policy(packed(texts)), Policy(family(name)).eval()(padded(texts)), rtol=1e-4, atol=1e-4
        )


def test_it_trains_lora_embeddings_and_norms(bench: Any) -> None:
    adapted = LongLoRA(rank=2).build(model=bench.base(), seed=0)
    kinds = {"lora" if "lora" in name else name.split(".")[-2] for name in adapted.state()}
    norms = {"input_layernorm", "post_attention_layernorm", "norm"}
    by_head = {"q_norm", "k_norm"} if bench.base().config.model_type == "qwen3" else set()
    assert kinds == {"lora", "embed_tokens"} | norms | by_head


@pytest.mark.proves("longlora")
def test_merged_it_attends_to_everything_even_in_training(bench: Any) -> None:
    adapted = LongLoRA(rank=2).build(model=bench.base(), seed=0)
    bench.train(adapted.model)
    tokens = torch.tensor([[5, 3, 8, 1, 9, 2, 2, 7]])
    merged = adapted.merged().train()
    torch.testing.assert_close(merged(tokens).logits, adapted.model.eval()(tokens).logits, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(adapted.model.train()(tokens).logits, merged(tokens).logits, atol=1e-3)


def test_what_has_no_groups_is_refused() -> None:
    model = family("qwen3")
    layout_for(model)
    adapted = LongLoRA(rank=2).build(model=model, seed=0)
    policy = Policy(adapted.model).train()
    with pytest.raises(GymError, match="share a prompt"):
        policy(packed(samples(), (None, 0, 0, None, None)))
    tokens = torch.arange(3, 19).view(2, 8)
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    with pytest.raises(GymError, match="no padding mask"):
        adapted.model(tokens, attention_mask=mask)


@pytest.mark.proves("longlora")
@pytest.mark.parametrize("kind", ["opt", "stablelm", "gpt_oss"])
def test_a_model_whose_attention_is_out_of_reach_is_refused(kind: str) -> None:
    with pytest.raises(GymError, match="attends in a way of its own"):
        LongLoRA(rank=2).build(model=own_way(kind), seed=0)

"""Every family: greedy decoding in a batch equals transformers' own, one prompt at a time, and a plain forward pass."""

from __future__ import annotations

import pytest
import torch
from gym_torch_decoding import PROMPTS, BareTokenizer, one_by_one

from gym_testkit import families
from gym_testkit.architectures import FAMILIES, build, ready
from gym_torch.attention import cached_attention
from gym_torch.generation import cache_support
from gym_torch.generation.cache_support import cache_support_of
from gym_torch.generation.generator import Generator, decode_batch
from gym_torch.generation.shared_prompts import shares
from gym_torch.kernels import few_row_products
from gym_torch.model import layout_support
from gym_torch.model.layout_support import layout_support_of, miniature_support
from gym_torch.packing import PACKED


@pytest.mark.parametrize("max_batch", [1, 3, 64])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_one_by_one(family: str, max_batch: int) -> None:
    found = Generator(ready(family), BareTokenizer(), max_batch).generate(PROMPTS, 12)
    for prompt, completion in zip(PROMPTS, found, strict=True):
        tokens, log_probs = one_by_one(ready(family), prompt, 12)
        assert completion.tokens == tokens
        assert completion.log_probs == pytest.approx(log_probs, abs=1e-4)
        assert completion.finished == (tokens[-1] == 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_what_transformers_generates(family: str) -> None:
    model = ready(family)
    found = Generator(model, BareTokenizer(), max_batch=4).generate(PROMPTS, 16)
    for prompt, completion in zip(PROMPTS, found, strict=True):
        ids = torch.tensor([prompt])
        theirs = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16, eos_token_id=0, pad_token_id=0
        )
        assert completion.tokens == theirs[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_have_the_log_probs_of_a_plain_forward_pass(family: str) -> None:
    prompts = [prompt for prompt in PROMPTS for _ in range(3)]
    model, limits = ready(family), [5 + 3 * (number % 7) for number in range(len(prompts))]
    for prompt, made in zip(
        prompts,
        Generator(model, BareTokenizer(), 8).generate(prompts, limits, temperature=1.0, stop_ids=[]),
        strict=True,
    ):
        with torch.no_grad():
            after = model(torch.tensor([prompt + made.tokens])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        assert made.log_probs == pytest.approx(
            after.gather(1, torch.tensor(made.tokens)[:, None])[:, 0].tolist(), abs=1e-4
        )


@pytest.mark.parametrize("autocast", [False, True], ids=["bf16", "autocast"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rounded_samples_are_as_near_to_exact_ones_as_those_of_torch(
    family: str, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each side's own samples beside a pass in fp32 over them; by kernels, rows are as long as they are."""
    exact, prompts = ready(family), [prompt for prompt in PROMPTS for _ in range(3)]
    model = build(family, None) if autocast else build(family, None).bfloat16()
    limits, errors = [5 + 3 * (number % 7) for number in range(len(prompts))], []
    for always in (False, True):
        for choices in (cached_attention.CHOICES, few_row_products.CHOICES):
            monkeypatch.setattr(choices, "always", always)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            made = Generator(model, None, 8).generate(prompts, limits, temperature=1.0, stop_ids=())
        found, wanted = [], []
        for prompt, each in zip(prompts, made, strict=True):
            with torch.no_grad():
                after = exact(torch.tensor([prompt + each.tokens])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            found += each.log_probs
            wanted += after.gather(1, torch.tensor(each.tokens)[:, None])[:, 0].tolist()
        # an expert may be another one
        errors.append(float((torch.tensor(found) - torch.tensor(wanted)).abs().median()))
    assert 0 < errors[1] < 1.3 * errors[0], errors


#: Families with a state of their own, without position ids, and with positions or choices that follow from the length of a text.
OTHERS = (
    "mamba",
    "bloom",
    "openai-gpt",
    "llama4_text",
    "phi3 longrope",
    "deepseek_v32",
    "bamba",
    "rwkv",
    "qwen2_moe windows",
)


@pytest.mark.parametrize("family", OTHERS)
def test_whatever_a_family_keeps_greedy_is_a_pass_over_the_whole_text(family: str) -> None:
    model = families.build(family)
    layout_support_of(model)
    prompts, limits = (
        [[3 + (5 * place + length) % 50 for place in range(length)] for length in (2, 21, 9, 9)],
        (10, 6, 14, 14),
    )
    found = Generator(model, BareTokenizer(), max_batch=3).generate(prompts, limits, stop_ids=[0])
    for prompt, made, limit in zip(prompts, found, limits, strict=True):
        tokens, log_probs = one_by_one(model, prompt, limit)
        assert made.tokens == tokens
        assert made.log_probs == pytest.approx(log_probs, abs=1e-3)


def test_a_prompt_is_shared_only_where_that_was_tried() -> None:
    prompts = [[3 + place % 50 for place in range(66)]] * 4
    for family, shared in (("llama", True), ("qwen2_moe windows", False), ("diffllama", False)):
        model = families.build(family)
        layout_support_of(model)
        found = cache_support_of(model, 80, decode_batch).shared and shares(model, prompts)
        assert found is shared, family


@pytest.mark.parametrize("family", [*FAMILIES, "deepseek_v3", "mixtral", "falcon", "gpt_oss"])
def test_a_cache_is_used_where_it_can_be(family: str) -> None:
    model = ready(family) if family in FAMILIES else families.build(family)
    assert cache_support_of(model, 80, decode_batch).cached


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_what_is_found_out_is_the_same_where_the_caller_rounds(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for known in (cache_support, layout_support):
        monkeypatch.setattr(known, "_KNOWN", {})
    with torch.autocast("cpu", torch.bfloat16):
        assert cache_support_of(ready(family), 64, decode_batch).cached
        assert miniature_support(ready(family), 64, packs=True).layout is PACKED

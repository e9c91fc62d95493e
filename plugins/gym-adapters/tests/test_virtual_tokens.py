"""VirtualTokenAdapter tokens: every text sees them, packed or padded or decoded, as it does in peft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_adapters_families import FULL, OWN_WAYS, WINDOWED, family, own_way, samples
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from gym_adapters import PrefixTuning, PromptTuning
from gym_adapters.virtual_tokens import VirtualTokenAdapter
from gym_core import GymError
from gym_testkit.architectures import VOCABULARY
from gym_torch.batch import packed, padded
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.generation.generator import Generator
from gym_torch.memory.gradient_checkpointing import recompute_layers
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED
from gym_torch.policy import Policy

KINDS: dict[str, PromptTuning | PrefixTuning] = {
    "prompt": PromptTuning(num_virtual_tokens=3),
    "prefix": PrefixTuning(num_virtual_tokens=3),
}
PROMPTS = [[number % 49 + 1 for number in range(start, start * 2 + 3)] for start in (1, 7, 3, 12, 3)]


@dataclass(frozen=True)
class BareTokenizer:
    eos_id: int = 0
    pad_id: int = 0


@pytest.fixture(params=["prompt", "prefix"])
def config(request: pytest.FixtureRequest) -> PromptTuning | PrefixTuning:
    return KINDS[request.param]


def shaken(config: Any, model: PreTrainedModel) -> VirtualTokenAdapter[Any]:
    """Adapt a model, with first values far from what they begin as."""
    adapted: VirtualTokenAdapter[Any] = config.build(model=model, seed=0)
    with torch.no_grad():
        for weight in adapted.state().values():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return adapted


def losses(
    adapted: VirtualTokenAdapter[Any], lay_out: Callable[..., Any], prefixes: Sequence[int | None] = ()
) -> tuple[Tensor, Tensor]:
    """Return the loss of each sample, and the gradient of their weighted sum."""
    batch = lay_out(samples(), prefixes)
    log_probs = Policy(adapted.model)(batch)
    each = torch.zeros(len(batch.segments)).index_add(0, batch.target_segment, -log_probs)
    weights = [weight for weight in adapted.model.parameters() if weight.requires_grad]
    (gradient,) = torch.autograd.grad((each * torch.linspace(0.5, 1.5, len(each))).sum(), weights)
    return each.detach(), gradient


@pytest.mark.proves("prefix_tuning", "prompt_tuning")
@pytest.mark.parametrize("prefixes", [(), (None, None, 0, 0, None)], ids=["separate", "shared prefix"])
@pytest.mark.parametrize("name", FULL)
def test_packed_is_unpacked(name: str, config: Any, prefixes: Any) -> None:
    model = family(name)
    assert layout_for(model) is PACKED
    adapted = shaken(config, model)
    found, wanted = losses(adapted, packed, prefixes), losses(adapted, padded, prefixes)
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-5, atol=1e-5)
    assert float((found[1] - wanted[1]).norm() / wanted[1].norm()) < 1e-4
    with adapted.disable_adapter():
        alone = torch.zeros(5).index_add(
            0, packed(samples(), prefixes).target_segment, -Policy(model)(packed(samples(), prefixes))
        )
    assert float((alone - found[0]).abs().max()) > 1e-2, "the texts do not see the virtual tokens"


@pytest.mark.proves("prefix_tuning", "prompt_tuning")
@pytest.mark.parametrize("name", FULL)
def test_it_computes_what_peft_does(name: str, config: Any, tmp_path: Path) -> None:
    adapted = shaken(config, family(name))
    adapted.save(tmp_path / "adapter", "base")
    peft = PeftModel.from_pretrained(family(name), str(tmp_path / "adapter"))
    tokens = torch.arange(3, 25).view(2, 11) % VOCABULARY
    with torch.no_grad():
        found, wanted = adapted.model(tokens).logits, peft(input_ids=tokens).logits[:, -11:]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.proves("prefix_tuning", "prompt_tuning")
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_decoding_in_a_batch_is_a_plain_pass_for_each_token(name: str, config: Any) -> None:
    model = family(name)
    assert layout_for(model) is PACKED
    adapted = shaken(config, model)
    found = Generator(model, BareTokenizer(), max_batch=3).generate(PROMPTS, 9, stop_ids=[])
    for prompt, made in zip(PROMPTS, found, strict=True):
        with torch.no_grad():
            after = adapted.model(torch.tensor([prompt + made.tokens]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        assert made.tokens == after.argmax(-1).tolist()
        assert made.log_probs == pytest.approx(after.log_softmax(-1).max(-1).values.tolist(), abs=1e-4)


def test_transformers_generates_the_same(config: Any) -> None:
    adapted = shaken(config, family("qwen3"))
    found = Generator(adapted.model, BareTokenizer()).generate(PROMPTS[:1], 6, stop_ids=[])[0].tokens
    ids = torch.tensor(PROMPTS[:1])
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 6, "eos_token_id": -1}
    assert adapted.model.generate(ids, **options)[0, ids.shape[1] :].tolist() == found


def test_checkpointed_layers_change_nothing(config: Any) -> None:
    model = family("qwen3")
    assert layout_for(model) is PACKED
    adapted = shaken(config, model)
    wanted = losses(adapted, packed)
    recompute_layers(model)
    model.train()
    found = losses(adapted, packed)
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1], wanted[1])


@pytest.mark.proves("prompt_tuning")
def test_only_the_virtual_tokens_train_and_they_learn(bench: Any, config: Any) -> None:
    adapted = config.build(model=bench.base(), seed=0)
    before = {name: weight.detach().clone() for name, weight in adapted.model.named_parameters()}
    first = bench.logits(adapted.model)
    bench.train(adapted.model)
    moved = {name for name, weight in adapted.model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {"prompt_embeddings"}
    assert float((bench.logits(adapted.model) - first).abs().max()) > 1e-3
    layers, wide = 3, 8
    wanted = config.num_virtual_tokens * (16 if isinstance(config, PromptTuning) else layers * 2 * wide)
    assert sum(weight.numel() for weight in adapted.state().values()) == wanted


def test_left_out_restored_and_opened(bench: Any, config: Any, tmp_path: Path) -> None:
    adapted = config.build(model=bench.base(), seed=0)
    bench.train(adapted.model)
    expected = bench.logits(adapted.model)
    with adapted.disable_adapter():
        assert torch.equal(bench.logits(adapted.model), bench.logits(bench.base()))
    assert torch.equal(bench.logits(adapted.model), expected)
    artifact = adapted.save(tmp_path / "adapter", str(bench.path), exact=True)
    other = config.build(model=bench.base(), seed=4)
    other.load(other.read(tmp_path / "adapter"))
    assert torch.equal(bench.logits(other.model), expected)
    assert torch.equal(bench.logits(open_artifact(artifact).model), expected)


def test_the_seed_is_the_adapter(bench: Any, config: Any) -> None:
    first, second, third = (
        config.build(model=bench.base(), seed=seed).state()["prompt_embeddings"] for seed in (3, 3, 4)
    )
    assert torch.equal(first, second) and not torch.equal(first, third)


def test_bf16_under_autocast(bench: Any, config: Any) -> None:
    adapted = config.build(model=bench.base(dtype=torch.bfloat16), seed=0)
    assert adapted.state()["prompt_embeddings"].dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        bench.train(adapted.model)
        assert torch.isfinite(bench.logits(adapted.model)).all()


def test_it_cannot_be_merged(bench: Any, config: Any) -> None:
    with pytest.raises(GymError, match=r"cannot be merged[^\n]*\n.*peft"):
        config.build(model=bench.base(), seed=0).merged()


@pytest.mark.proves("prefix_tuning", "prompt_tuning")
@pytest.mark.parametrize("name", WINDOWED)
def test_a_model_with_windows_is_refused(name: str, config: Any) -> None:
    with pytest.raises(GymError, match="does not attend to all that stands before"):
        config.build(model=family(name), seed=0)


def test_prefixes_may_begin_as_noise() -> None:
    adapted = PrefixTuning(num_virtual_tokens=2, init="random").build(model=family("qwen3"), seed=0)
    values = adapted.state()["prompt_embeddings"]
    assert values.shape == (2, 2 * 2 * 2 * 8) and 0.7 < float(values.std()) < 1.3


@pytest.mark.proves("prefix_tuning")
def test_prefixes_begin_as_what_the_model_computes() -> None:
    model = family("qwen3")
    torch.manual_seed(7)
    ids = torch.randint(VOCABULARY, (3,))
    cache = model(ids[None], use_cache=True).past_key_values
    adapted = PrefixTuning(num_virtual_tokens=3).build(model=model, seed=7)
    for (key, value), layer in zip(adapted.keys_and_values(), cache.layers, strict=True):
        torch.testing.assert_close(key, layer.keys)
        torch.testing.assert_close(value, layer.values)


@pytest.mark.proves("prefix_tuning", "prompt_tuning")
@pytest.mark.parametrize("kind", OWN_WAYS)
def test_a_model_whose_attention_is_out_of_reach_is_refused(kind: str, config: Any) -> None:
    with pytest.raises(GymError, match="attends in a way of its own"):
        config.build(model=own_way(kind), seed=0)

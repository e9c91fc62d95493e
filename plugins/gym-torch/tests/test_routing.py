"""Experts are recorded where tokens are sampled and forced where they are learnt from; how much each counts is computed anew."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from gym_core import GymError
from gym_data.tokenizer import Tokenizer
from gym_torch.batch import Batch, Piece
from gym_torch.generation.generator import Generator
from gym_torch.memory.gradient_checkpointing import recompute_layers
from gym_torch.model.expert_routing import FREE, Routers, lay_out
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED, PADDED, Layout
from gym_torch.policy import Policy

SHAPE = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3, "vocab_size": 264}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
MIXTURES = {
    "qwen3": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SHAPE, **HEADS, head_dim=8, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16)
    ),
    "qwen3 of which one layer is dense": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **SHAPE,
            **HEADS,
            head_dim=8,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            mlp_only_layers=[1],
            norm_topk_prob=True,
        )
    ),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SHAPE, **HEADS, num_local_experts=5, num_experts_per_tok=3)),
    "deepseek, in groups": lambda: DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **SHAPE,
            num_attention_heads=4,
            num_key_value_heads=4,
            n_routed_experts=8,
            num_local_experts=8,
            num_experts_per_tok=2,
            n_group=4,
            topk_group=2,
            moe_intermediate_size=16,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=8,
            first_k_dense_replace=1,
        )
    ),
}


def mixture(name: str = "qwen3"):
    torch.manual_seed(0)
    model = MIXTURES[name]()
    with torch.no_grad():  # wide enough that routers prefer some experts
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.2)
    return model


def pieces() -> tuple[list[Piece], tuple[int | None, ...]]:
    random = np.random.default_rng(0)
    lengths = (5, 4, 7, 3)
    made = [
        Piece(str(n), random.integers(3, 250, size).astype(np.int32), np.ones(size, bool))
        for n, size in enumerate(lengths)
    ]
    return made, (None, 0, 0, None)


def recorded(model, routers: Routers, layout: Layout) -> tuple[Batch, list[np.ndarray]]:
    """Return a batch, and the experts that a pass over each sample by itself chose for its tokens."""
    examples, prefixes = pieces()
    found = []
    for example, prefix in zip(examples, prefixes, strict=True):
        before = [] if prefix is None else examples[prefix].tokens.tolist()
        tokens = torch.tensor([[*before, *example.tokens.tolist()]])
        _, experts = routers.record(lambda tokens=tokens: model.base_model(input_ids=tokens, use_cache=False))
        found.append(experts[len(before) :].numpy())
    return layout.lay_out(examples, prefixes), found


def scored(model, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the log-probabilities of a batch, and the gradients of their sum."""
    model.zero_grad()
    log_probs = Policy(model)(batch)
    log_probs.sum().backward()
    return log_probs.detach(), {
        name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None
    }


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=lambda layout: layout.name)
def test_forced_is_free_where_the_weights_are_those_that_recorded(name, layout) -> None:
    model = mixture(name)
    if layout is PACKED and layout_for(model) is not PACKED:
        pytest.skip("attends in its own way")
    routers = Routers(model)
    batch, experts = recorded(model, routers, layout)
    free, gradients = scored(model, batch)
    forced, others = scored(model, replace(batch, experts=lay_out(layout, *pieces(), experts)))
    assert torch.equal(forced, free)
    assert gradients.keys() == others.keys()
    assert all(torch.equal(gradients[key], others[key]) for key in gradients)
    assert any("gate" in key or "router" in key for key in gradients), "the router learns"


@pytest.mark.parametrize("name", MIXTURES)
def test_what_is_forced_is_what_was_recorded_whatever_the_router_says_now(name) -> None:
    model = mixture(name)
    routers = Routers(model)
    batch, experts = recorded(model, routers, PADDED)
    chosen = lay_out(PADDED, *pieces(), experts)
    with torch.no_grad():
        for router in routers.routers:
            router.module.weight.add_(torch.randn_like(router.module.weight))
    free, _ = scored(model, batch)
    forced, gradients = scored(model, replace(batch, experts=chosen))
    assert not torch.allclose(free, forced, atol=1e-3), "the router decides as before"
    run = model.base_model
    options = {"input_ids": batch.tokens, "position_ids": batch.positions, "use_cache": False}
    _, taken = routers.record(lambda: run(**options, experts=chosen))
    _, now = routers.record(lambda: run(**options))
    wanted = chosen.flatten(0, 1)
    text = wanted[:, 0, 0] != FREE
    assert 0 < int(text.sum()) < len(text), "padding is part of the test"
    assert torch.equal(taken[text], wanted[text])
    assert not torch.equal(now, taken)
    assert all(gradients[key].abs().sum() > 0 for key in gradients if key.endswith("gate.weight"))


def test_the_gates_are_computed_anew() -> None:
    """The experts stay, and what they count follows the router of the moment: by hand for one token of one layer."""
    model = mixture()
    routers = Routers(model)
    router = routers.routers[0]
    states = torch.randn(1, 32)
    router.forced = torch.tensor([[4, 1]], dtype=torch.int16)
    _, scores, index = router.module(states)
    router.forced = None
    probs = (states @ router.module.weight.T).softmax(-1)[0]
    expected = probs[[4, 1]] / (probs[[4, 1]].sum() if router.module.norm_topk_prob else 1)
    assert index.tolist() == [[4, 1]]
    assert torch.allclose(scores[0], expected, atol=1e-6)


def test_layers_that_are_computed_again_are_routed_again() -> None:
    model = mixture()
    routers = Routers(model)
    assert layout_for(model) is PACKED
    batch, experts = recorded(model, routers, PACKED)
    batch = replace(batch, experts=lay_out(PACKED, *pieces(), experts))
    with torch.no_grad():
        for router in routers.routers:
            router.module.weight.add_(torch.randn_like(router.module.weight))
    model.train()
    kept, gradients = scored(model, batch)
    recompute_layers(model)
    again, others = scored(model, batch)
    assert torch.equal(kept, again)
    assert all(torch.allclose(gradients[key], others[key], atol=1e-6) for key in gradients)


def test_routers_work_as_before_where_nothing_is_asked_of_them() -> None:
    tokens = torch.arange(3, 20)[None]
    expected = mixture()(tokens).logits
    model = mixture()
    Routers(model)
    assert torch.equal(model(tokens).logits, expected)
    assert torch.equal(copy.deepcopy(model)(tokens).logits, expected)
    again = Routers(model)  # prepared twice, which forces another choice, and sees it
    assert len(again.routers) == 3
    assert torch.equal(model(tokens).logits, expected)


def test_a_compiled_layer_is_routed_as_told() -> None:
    model = mixture()
    routers = Routers(model)
    tokens = torch.arange(3, 12)[None]
    _, own = routers.record(lambda: model.base_model(input_ids=tokens, use_cache=False))
    other = (own + 1) % 6
    wanted = model.base_model(input_ids=tokens, experts=other[None]).last_hidden_state
    model.model.layers[0].compile(backend="eager")
    made, found = routers.record(lambda: model.base_model(input_ids=tokens, experts=other[None]).last_hidden_state)
    assert torch.equal(found, other)
    assert torch.equal(made, wanted)


def test_a_copy_has_routers_of_its_own() -> None:
    model = mixture()
    Routers(model)
    other = copy.deepcopy(model)
    tokens = torch.arange(3, 9)[None]
    experts = torch.zeros(1, 6, 3, 2, dtype=torch.int16)
    experts[..., 1] = 5
    forced = other.base_model(input_ids=tokens, experts=experts).last_hidden_state
    assert not torch.allclose(forced, model.base_model(input_ids=tokens).last_hidden_state, atol=1e-3)
    assert torch.equal(forced, model.base_model(input_ids=tokens, experts=experts).last_hidden_state)


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Tokenizer:
    return Tokenizer(model_path)


@pytest.mark.parametrize("max_batch", [64, 2])
def test_the_generator_records_prompt_and_answer(tokenizer, max_batch) -> None:
    model = mixture()
    routers = Routers(model)
    prompts = [[5, 9, 17, 20], [30], [5, 9, 17, 20], [40, 41]]
    plain = Generator(model, tokenizer, max_batch).generate(prompts, [6, 9, 3, 1], temperature=1.0, seed=1)
    made = Generator(model, tokenizer, max_batch, routers).generate(prompts, [6, 9, 3, 1], temperature=1.0, seed=1)
    assert [answer.tokens for answer in made] == [answer.tokens for answer in plain]
    assert all(answer.routed == [] for answer in plain)
    for prompt, answer in zip(prompts, made, strict=True):
        text = torch.tensor([[*prompt, *answer.tokens[:-1]]])
        _, own = routers.record(lambda text=text: model.base_model(input_ids=text, use_cache=False))
        found = torch.cat(answer.routed)
        assert found.dtype == torch.int16
        assert torch.equal(found, own)
    if max_batch > 2:
        assert made[0].routed[0] is made[2].routed[0], "a prompt is recorded once for all answers to it"


def test_a_model_without_routers(model_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_path)
    with pytest.raises(GymError, match="has no routers"):
        Routers(model)


def test_a_router_that_chooses_in_another_way_is_noticed() -> None:
    model = mixture()
    kind = type(model.model.layers[0].mlp.gate)

    class Sorts(kind):
        def forward(self, hidden_states):
            probs = (hidden_states @ self.weight.T).softmax(-1)
            scores, index = probs.sort(-1, descending=True)
            return probs, scores[:, : self.top_k], index[:, : self.top_k]

    for layer in model.model.layers:
        layer.mlp.gate = Sorts(model.config)
    with pytest.raises(GymError, match="without being seen"):
        Routers(model)

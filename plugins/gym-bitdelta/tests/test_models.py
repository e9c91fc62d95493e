"""Any architecture: tied ends, experts in stacks, layers of GPT-2, other vocabularies, and a base in a few bits."""

from __future__ import annotations

import copy
import re
from math import prod

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedModel, Qwen3Config, Qwen3MoeConfig

from gym_bitdelta import BitDelta, DeltaQuant
from gym_bitdelta.delta import file
from gym_bitdelta.delta.header import data_bytes
from gym_bitdelta.encoding import Encoder, roles
from gym_bitdelta.fit.encode_weight import encode
from gym_core import Artifact, GymError
from gym_core.loading import load_component
from gym_testkit import families
from gym_torch.checkpoints import load_delta
from gym_torch.checkpoints.base_model import base_of
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.quantization.loading import quantize_in_place
from gym_torch.quantization.weights import plain_state, stored_modules

TOKENS = torch.tensor([[5, 3, 8, 1, 9, 2, 2, 7]])
SMALL = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
HEADS = {"num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
MODELS = {
    "tied": Qwen3Config(**SMALL, **HEADS, tie_word_embeddings=True),
    "untied": Qwen3Config(**SMALL, **HEADS, tie_word_embeddings=False),
    "experts": Qwen3MoeConfig(**SMALL, **HEADS, **EXPERTS, tie_word_embeddings=True),
    "gpt2": GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=32),
}


def pair(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a random model, and one with a change of normal numbers in every weight."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        base = AutoModelForCausalLM.from_config(MODELS[name]).float().eval()
        tuned = copy.deepcopy(base)
        for weight in tuned.parameters():
            weight += 0.02 * torch.randn_like(weight)
    return base, tuned


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS, use_cache=False).logits


@pytest.mark.parametrize("name", MODELS)
def test_every_matrix_of_a_layer_is_coded_and_little_is_left(name):
    base, tuned = pair(name)
    config = BitDelta(bits=4, scale_mode="row")
    encoder = Encoder(config, base, tuned)
    found = encoder.records(None)
    kinds = roles(tuned)
    coded = {key for key, record in found.items() if record.entry.kind == "dense-q"}
    assert {key for key, role in kinds.items() if role.matrix} <= coded
    assert max(encoder.errors[key] for key in coded) < 0.02
    if name == "experts":
        assert any(len(found[key].entry.shape) == 3 for key in coded)
        routers = [key for key in found if key.endswith("gate.weight")]
        assert routers and all(found[key].entry.kind == "raw" for key in routers)
    if name == "gpt2":
        entry = found["transformer.h.0.mlp.c_fc.weight"].entry
        assert entry.transposed and entry.matrices == (1, 128, 32), "bits run along the inputs"
    assert ("lm_head.weight" in found) == (name == "untied")
    again = copy.deepcopy(base)
    load_delta.add(again, ((key, record.values()) for key, record in found.items()))
    wanted = logits(tuned)
    assert (logits(again) - wanted).norm() < 0.15 * (logits(base) - wanted).norm()


@pytest.mark.parametrize(("name", "size"), [("tied", 45), ("untied", 45), ("tied", 33)])
def test_a_vocabulary_of_another_size(name, size):
    base, tuned = pair(name)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        tuned.resize_token_embeddings(size, mean_resizing=False)
    found = Encoder(BitDelta(bits=4), base, tuned).records(None)
    again = copy.deepcopy(base)
    load_delta.add(again, ((key, record.values()) for key, record in found.items()))
    wanted = logits(tuned)
    assert again.config.vocab_size == size and logits(again).shape == wanted.shape
    assert (logits(again) - wanted).norm() < 0.3 * wanted.norm()


@pytest.mark.parametrize("options", [{"layer_bits": {"*.down_porj.weight": 16}}, {"sensitive_layers": ["*embed*"]}])
def test_a_pattern_of_no_matrix_is_refused(options):
    """Misspelt, it would leave the weights that it means in the bits of all others."""
    with pytest.raises(GymError, match=r"is the pattern of no matrix[\s\S]*down_proj") as caught:
        Encoder(DeltaQuant(**options), *pair("tied")).records(None)
    assert caught.value.problems[0].key == f"quantization.{next(iter(options))}"


def test_ends_that_were_tied_and_came_apart():
    base, tuned = pair("tied")
    with torch.no_grad():
        head = tuned.lm_head.weight.detach().clone() + 0.5
    tuned.config.tie_word_embeddings = False
    tuned.all_tied_weights_keys = {}
    tuned.lm_head.weight = torch.nn.Parameter(head)
    found = Encoder(BitDelta(bits=4), base, tuned).records(None)
    again = copy.deepcopy(base)
    load_delta.add(again, ((key, record.values()) for key, record in found.items()))
    assert again.lm_head.weight is not again.model.embed_tokens.weight
    assert (logits(again) - logits(tuned)).norm() < 0.1 * logits(tuned).norm()


@pytest.mark.parametrize("changed", ["model.embed_tokens.weight", "lm_head.weight", "both"])
def test_ends_that_are_tied_in_the_base_alone(changed):
    """What did not change is not what the other end became."""
    base, tuned = pair("tied")
    before = base.lm_head.weight.detach()
    with torch.no_grad():
        tuned.config.tie_word_embeddings, tuned.all_tied_weights_keys = False, {}
        tuned.lm_head.weight = torch.nn.Parameter(before + 0.5 * (changed != "model.embed_tokens.weight"))
        tuned.model.embed_tokens.weight.copy_(before - 0.5 * (changed != "lm_head.weight"))
    assert_the_same(base, tuned)


def test_ends_that_are_tied_in_the_fine_tune_alone():
    base, tuned = pair("untied")
    tuned.lm_head.weight = tuned.model.embed_tokens.weight
    tuned.config.tie_word_embeddings, tuned.all_tied_weights_keys = (
        True,
        {"lm_head.weight": "model.embed_tokens.weight"},
    )
    assert_the_same(base, tuned)


def assert_the_same(base, tuned):
    """A delta as it is opened, whatever order its weights come in."""
    found = Encoder(BitDelta(bits=4), base, tuned).records(None)
    wanted = logits(tuned)
    for names in (sorted(found), sorted(found, reverse=True)):
        again = copy.deepcopy(base)
        load_delta.add(again, ((key, found[key].values()) for key in names if found[key].entry.kind != "zero"))
        assert (logits(again) - wanted).norm() < 0.15 * wanted.norm()


#: Routers: in a module of their own, deeper than beside the experts, and beside layers as wide as there are experts.
ROUTERS = {
    "qwen3_moe": ["mlp.gate"],
    "afmoe": ["mlp.router.gate"],
    "hunyuan_v1_moe": ["mlp.gate.wg"],
    "jetmoe": ["mlp.router.layer", "self_attention.experts.router.layer"],
    "qwen3_5_moe_text": ["mlp.gate"],
}


@pytest.mark.parametrize("family", ROUTERS)
def test_routers_are_what_is_no_matrix_of_a_layer(family):
    found = [name for name, role in roles(families.build(family)).items() if not role.matrix and not role.end]
    apart = {re.sub(r".*layers\.\d+\.", "", name) for name in found if not re.search("norm|bias|A_log", name)}
    assert apart == {f"{name}.weight" for name in ROUTERS[family]}


def test_few_rows_of_embeddings_are_kept_as_rows():
    base, tuned = pair("tied")
    with torch.no_grad():
        tuned.model.embed_tokens.weight.copy_(base.model.embed_tokens.weight)
        tuned.model.embed_tokens.weight[[3, 17]] += 1.0
    record = Encoder(BitDelta(), base, tuned).records(None)["model.embed_tokens.weight"]
    assert record.entry.kind == "raw" and record.rows().tolist() == [3, 17]


def test_a_base_in_a_few_bits_computes_with_the_delta_beside(bench, tuned, tmp_path):
    base = bench.model_of(64, 96)
    artifact = tuned(base)
    made = BitDelta(bits=4, distill_steps=0).build().quantize(bench.trained(base), artifact, tmp_path / "delta")
    hqq = load_component("quantizers", "hqq")[1](bits=8)
    small = open_artifact(made, quantizer=hqq).model
    wanted = logits(open_artifact(artifact).model)
    plain = logits(open_artifact(Artifact(base), quantizer=hqq).model)
    assert (logits(small) - wanted).norm() < 0.2 * (plain - wanted).norm()
    with pytest.raises(GymError, match="another base"):
        load_delta.with_delta(made, bench.model(), quantizer=hqq)
    assert base_of(made) == base


@pytest.mark.parametrize("name", ["gpt2", "experts", "untied"])
def test_of_any_architecture_a_base_in_a_few_bits_computes_with_the_delta_beside(name):
    """In eight bits it computes nearly what the fine-tune does; merged, its weights are those of base and delta."""
    base, tuned = pair(name)
    found = Encoder(BitDelta(bits=4, scale_mode="row"), base, tuned).records(None)
    changes = [(key, record.values()) for key, record in found.items() if record.entry.kind != "zero"]
    small, whole = copy.deepcopy(base), copy.deepcopy(base)
    quantizer = load_component("quantizers", "hqq")[1](bits=8)
    quantize_in_place(small, quantizer.build(), quantizer)
    stored = {f"{path}.{own}" for path, each in stored_modules(small).items() for own in each.shapes()}
    assert {key for key, role in roles(base).items() if role.matrix} <= stored
    load_delta.add(small, changes)
    load_delta.add(whole, changes)
    wanted = logits(whole)
    assert (logits(small) - wanted).norm() < 0.05 * (logits(base) - wanted).norm()
    weights = dict(plain_state(small))
    for key in stored:
        assert (weights[key] - whole.get_parameter(key)).abs().max() < 2e-3, key
    with pytest.raises(GymError, match=r"of shape \[3, 5\]"):
        load_delta.add(small, [(sorted(stored)[0], torch.zeros(3, 5))])


PUBLISHED = {  # hidden, feed-forward, layers, width of keys and values, vocabulary; GB of the delta as it was published
    "Llama-2-7B": (4096, 11008, 32, 4096, 32000, 1.334),
    "Llama-2-13B": (5120, 13824, 40, 5120, 32000, 2.241),
    "Llama-2-70B": (8192, 28672, 80, 1024, 32000, 9.605),
    "Mistral-7B": (4096, 14336, 32, 1024, 32000, 1.397),
}


def shapes(hidden: int, middle: int, layers: int, narrow: int, wide: int | None = None) -> dict[str, tuple[int, int]]:
    """Return the matrices of the layers of a decoder by name."""
    wide = wide or hidden
    each = {
        "self_attn.q_proj": (wide, hidden),
        "self_attn.k_proj": (narrow, hidden),
        "self_attn.v_proj": (narrow, hidden),
    }
    each |= {"self_attn.o_proj": (hidden, wide), "mlp.down_proj": (hidden, middle)}
    each |= {"mlp.gate_proj": (middle, hidden), "mlp.up_proj": (middle, hidden)}
    return {f"model.layers.{n}.{name}.weight": shape for n in range(layers) for name, shape in each.items()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_those_that_were_published(name):
    """One bit for each matrix of a layer, as declared from shapes alone; embeddings and head in 16 bits, as published."""
    hidden, middle, layers, narrow, vocabulary, wanted = PUBLISHED[name]
    coded = BitDelta(scale_mode="tensor", ternary_above=1).declared_bytes(shapes(hidden, middle, layers, narrow))
    formula = sum(map(prod, shapes(hidden, middle, layers, narrow).values())) / 8
    assert formula <= coded <= 1.01 * formula + 64 * 1024
    assert (coded + 2 * 2 * vocabulary * hidden) / 1e9 == pytest.approx(wanted, abs=0.01)


def test_size_of_a_4b_model():
    weights = shapes(2560, 9728, 36, 1024, 4096)
    assert BitDelta(scale_mode="tensor", ternary_above=1).declared_bytes(weights) == pytest.approx(454.16e6, rel=0.001)
    assert BitDelta(group_size=128, ternary_above=1).declared_bytes(weights) == pytest.approx(511e6, rel=0.002)


@pytest.mark.parametrize("config", [BitDelta(scale_mode="tensor"), BitDelta(), DeltaQuant(method="binary")])
def test_a_size_is_declared_for_three_values_where_one_bit_may_become_them(config):
    """A fine-tune that was rounded leaves many numbers as they were; 512 x 512 is larger than what is allowed beside."""
    name, shape = "model.layers.0.mlp.up_proj.weight", (1024, 1024)
    draws = torch.Generator().manual_seed(0)
    change = torch.randn(shape, generator=draws) * (torch.rand(shape, generator=draws) < 0.7)
    entry = encode(change, config.coding(name)).entry
    assert config.size_varies() and entry.code == "ternary"
    assert data_bytes({name: entry}) <= config.declared_bytes({name: shape})
    one = config.model_copy(update={"ternary_above": 1.0})
    assert encode(change, one.coding(name)).entry.code == "signs"
    assert one.declared_bytes({name: shape}) < 0.7 * config.declared_bytes({name: shape})


def test_a_file_takes_what_its_formula_says(bench, tuned, tmp_path):
    base = bench.model_of(256, 320)
    made = (
        BitDelta(distill_steps=0, scale_mode="row")
        .build()
        .quantize(bench.trained(base), tuned(base), tmp_path / "delta")
    )
    entries = file.header_of(made.path / file.NAME).entries()
    formula = sum(
        prod(entry.shape) / 8 + 2 * entry.shape[0]
        for entry in entries.values()
        if entry.kind == "dense-q" and entry.bits == 1
    )
    formula += sum(2 * prod(entry.shape) for entry in entries.values() if entry.kind == "raw")
    formula += sum(
        prod(entry.shape) * (4 + 16 / 128) / 8
        for entry in entries.values()
        if entry.kind == "dense-q" and entry.bits == 4
    )
    assert (made.path / file.NAME).stat().st_size <= 1.01 * formula + 64 * 1024

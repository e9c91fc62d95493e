"""Bases that are quantized, and tenants whose vocabulary is not that of the base."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from random_deltas import BASE, coded, merged, of_model, whole
from transformers import AutoConfig, AutoModelForCausalLM

from gym_bitdelta.delta import file, records
from gym_bitdelta.delta.header import Dense
from gym_bitdelta.runtime.products import products
from gym_bitdelta.runtime.tenant_model import TenantModel
from gym_core import GymError
from gym_torch.kinds import LoadTimeQuantizer
from gym_torch.quantization.loading import quantize_in_place, quantize_layer
from gym_torch.quantization.weight_codec import WeightCodec
from gym_torch.quantization.weights import plain_state

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


@pytest.mark.parametrize("kind", ["gpt2", "qwen3_moe"])
@torch.no_grad()
def test_a_quantized_base_of_another_architecture(tmp_path, kind):
    torch.manual_seed(0)
    options = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 16}
    options |= {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_experts": 4,
        "moe_intermediate_size": 16,
        "num_experts_per_tok": 2,
    }
    if kind == "gpt2":
        options = {"vocab_size": 50, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32}
    quantized = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).eval().requires_grad_(False)
    plain = copy.deepcopy(quantized)
    quantize_in_place(quantized, Rounded(), LoadTimeQuantizer())
    for name, weight in plain_state(quantized):
        plain.get_parameter(name).copy_(weight)
    delta = of_model(plain, 3)
    file.write(tmp_path / "a", delta)
    served = TenantModel(quantized, lambda name: tmp_path / name, BASE)
    with served.serving(["a", None]):
        found = served.model(TOKENS).logits
    assert torch.allclose(found[1], plain(TOKENS).logits[1], atol=1e-5)
    wanted = merged(plain, delta)(TOKENS).logits[0]
    assert torch.allclose(found[0], wanted, atol=1e-5 * float(wanted.abs().max()))


class Doubled(torch.nn.Linear):
    """A layer that calls itself linear, and does more with its product."""

    def forward(self, x):
        return 2 * super().forward(x)


class Scored(torch.nn.Linear):
    """A layer that calls itself linear, and returns two things, as routers of experts do."""

    def forward(self, x):
        found = super().forward(x)
        return found, found.sigmoid()


class First(torch.nn.Module):
    """Computes with a part of what a layer returns."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[1]


@pytest.mark.parametrize("form", [Doubled, Scored])
@torch.no_grad()
def test_what_is_called_linear_is_tried_before_products_are_added_to_it(tmp_path, form):
    model = base()
    old = model.model.layers[0].mlp.up_proj
    layer = form(old.in_features, old.out_features, bias=True).requires_grad_(False)
    layer.weight.copy_(old.weight)
    model.model.layers[0].mlp.up_proj = First(layer) if form is Scored else layer
    delta = of_model(model, 3)
    file.write(tmp_path / "a", delta)
    wanted = merged(copy.deepcopy(model), delta)(TOKENS).logits[0], model(TOKENS).logits[1]
    served = TenantModel(model, lambda name: tmp_path / name, BASE)
    with served.serving(["a", None]):
        found = served.model(TOKENS).logits
    for row, each in zip(found, wanted, strict=True):
        assert torch.allclose(row, each, atol=1e-5 * float(each.abs().max()))


HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
#: Bases in which modules have weights of their own beside modules inside them, or compute with the weights of these themselves.
KINDS = {
    "gpt_oss": HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1},
    "qwen3_next": HEADS
    | LINEAR
    | {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts_per_tok": 2},
}


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_what_lies_inside_a_module_with_weights_of_its_own_is_served(tmp_path, kind):
    torch.manual_seed(0)
    options = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, **KINDS[kind]}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).eval().requires_grad_(False)
    delta = of_model(model, 3)
    file.write(tmp_path / "a", delta)
    plain, wanted = (each(TOKENS, use_cache=False).logits for each in (model, merged(copy.deepcopy(model), delta)))
    served = TenantModel(model, lambda name: tmp_path / name, BASE)
    for rows in (["a", "a"], ["a", None]):
        if kind == "gpt_oss" and None in rows:  # whose attention is also given pairs of tensors
            with served.serving(rows), pytest.raises(GymError, match="is not known"):
                served.model(TOKENS, use_cache=False)
            made = served.generate(TOKENS.tolist(), rows, 3, stop_ids=())
            for each, tenants in zip(made, [["a"], [None]], strict=True):  # which shares no batches
                (mine,) = served.generate(
                    TOKENS[:1].tolist() if tenants == ["a"] else TOKENS[1:].tolist(), tenants, 3, stop_ids=()
                )
                assert each.tokens == mine.tokens and each.log_probs == pytest.approx(mine.log_probs, abs=1e-4)
            continue
        with served.serving(rows):
            found = served.model(TOKENS, use_cache=False).logits
        for name, row, mine, bases in zip(rows, found, wanted, plain, strict=True):
            assert torch.allclose(row, bases if name is None else mine, atol=1e-5 * float(wanted.abs().max()))


@torch.no_grad()
def test_threads_that_compute_at_once_have_their_own_weights(tmp_path):
    """Within a pass for one tenant another thread computes for the base and for another tenant."""
    torch.manual_seed(0)
    options = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, **KINDS["gpt_oss"]}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt_oss", **options)).eval().requires_grad_(False)
    for seed, name in enumerate("ab"):
        file.write(tmp_path / name, of_model(model, seed))
    served = TenantModel(model, lambda name: tmp_path / name, BASE)

    def logits(name):
        with served.serving([name] * len(TOKENS)):
            return served.model(TOKENS, use_cache=False).logits

    wanted = {name: logits(name) for name in ("a", "b", None)}
    at_work, found = [], {}

    def meanwhile(*_):
        if not at_work:
            at_work.append(True)
            with ThreadPoolExecutor(1) as other:
                found.update((name, other.submit(logits, name).result()) for name in ("b", None))

    hook = model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(meanwhile)
    found["a"] = logits("a")
    hook.remove()
    assert at_work and all(torch.equal(found[name], wanted[name]) for name in wanted)


@torch.no_grad()
def test_rows_that_a_layer_takes_in_another_order_are_never_mixed_up(tmp_path):
    """Experts of Llama 4 take all tokens once for each expert: halves of that are no rows."""
    torch.manual_seed(0)
    options = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "intermediate_size_mlp": 48,
        "head_dim": 16,
    }
    options |= {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1, "num_local_experts": 4}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama4_text", **options)).eval()
    model.requires_grad_(False)
    names = [name for name in dict(model.named_parameters()) if "experts" in name]
    delta = whole({name: records.raw(torch.full_like(model.get_parameter(name), 0.1)) for name in names})
    file.write(tmp_path / "a", delta)
    wanted = merged(copy.deepcopy(model), delta)(TOKENS).logits
    served = TenantModel(model, lambda name: tmp_path / name, BASE)
    with served.serving(["a", "a"]):
        assert torch.allclose(served.model(TOKENS).logits, wanted, atol=1e-5 * float(wanted.abs().max()))
    with served.serving(["a", None]), pytest.raises(GymError, match=r"experts .*is not known"):
        served.model(TOKENS)


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


@torch.no_grad()
def test_ends_that_came_apart_are_served_apart(tmp_path):
    """The base ties them; each has a change of its own, or one has none."""
    embedding, head = (
        records.raw(torch.randn(50, 32, generator=torch.Generator().manual_seed(seed))) for seed in (1, 2)
    )
    nothing = records.raw(torch.zeros(50, 32), torch.empty(0, dtype=torch.int64))
    told = {"both": (embedding, head), "one": (embedding, nothing), "other": (nothing, head)}
    for name, pair in told.items():
        file.write(tmp_path / name, whole(dict(zip((EMBEDDING, "lm_head.weight"), pair, strict=True))))
    file.write(tmp_path / "tied", whole({EMBEDDING: embedding}))
    rows = [*told, "tied", None]
    tokens = TOKENS[:1].expand(len(rows), -1)
    served = TenantModel(base(), lambda name: tmp_path / name, BASE)
    with served.serving(rows):
        found = served.model(tokens).logits
    for row, name in enumerate(rows):
        alone = base()
        ends = told.get(name, (embedding, embedding) if name else (nothing, nothing))
        alone.lm_head.weight = torch.nn.Parameter(alone.lm_head.weight + ends[1].values())
        alone.model.embed_tokens.weight.data = alone.model.embed_tokens.weight + ends[0].values()
        wanted = alone(tokens[:1]).logits[0]
        assert torch.allclose(found[row], wanted, atol=1e-5 * float(wanted.abs().max())), name


@torch.no_grad()
def test_few_inputs_of_a_layer_of_gpt2_that_changed(tmp_path):
    """Its weight is `[in, out]`: rows that a file holds are inputs."""
    options = {"vocab_size": 50, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **options)).eval().requires_grad_(False)
    name = "transformer.h.0.mlp.c_fc.weight"
    change = torch.zeros(32, 128)
    change[[3, 20]] = torch.randn(2, 128, generator=torch.Generator().manual_seed(1))
    delta = whole({name: records.raw(change, torch.tensor([3, 20]))})
    file.write(tmp_path / "a", delta)
    wanted = merged(copy.deepcopy(model), delta)(TOKENS).logits
    plain = model(TOKENS).logits
    served = TenantModel(model, lambda name: tmp_path / name, BASE)
    with served.serving(["a", None]):
        found = served.model(TOKENS).logits
    assert torch.allclose(found[0], wanted[0], atol=1e-5) and torch.allclose(found[1], plain[1], atol=1e-5)


def test_a_fine_tune_that_computes_otherwise_is_refused_by_name(tmp_path):
    for changed in ({"rope_parameters": {"rope_theta": 5.0}}, {"pad_token_id": 3, "attention_dropout": 0.1}):
        delta = file.made(BASE, {EMBEDDING: records.raw(torch.ones(50, 32))}, {}, {}, changed)
        file.write(tmp_path / "-".join(changed), delta)
    served = TenantModel(base(), lambda name: tmp_path / name, BASE)
    with (
        pytest.raises(GymError, match="computes otherwise than its base: rope_parameters"),
        served.serving(["rope_parameters"]),
    ):
        pass
    with served.serving(["pad_token_id-attention_dropout"]):
        assert served.model(TOKENS[:1]).logits.shape == (1, 3, 50)

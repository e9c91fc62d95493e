"""Families: what is computed layer by layer, scaled and written is the model, whatever its norms and projections are."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from gym_core import Artifact, GymError
from gym_quant import AWQ, FP8, GPTQ, RTN, Mixed
from gym_quant.post_training.calibration import Rows
from gym_quant.post_training.separate_experts import ignoring, separate
from gym_quant.post_training.walk import Walk
from gym_testkit import families
from gym_testkit.architectures import FAMILIES, SHAPE, ready
from gym_testkit.tiny import VOCABULARY

MIXTURES = ("mixtral", "granitemoe")
TOKENS = torch.arange(30)[None] * 7 % 256


def write(bench, path: Path, name: str) -> Path:
    """Write a random model of a family, with the tokenizer of the tiny one."""
    if name in FAMILIES or name in MIXTURES:
        options = (
            SHAPE | {"hidden_size": 48} | FAMILIES.get(name, {"num_local_experts": 4}) | {"vocab_size": VOCABULARY}
        )
        config = AutoConfig.for_model(options.pop("type", name), **options)
    else:
        config = families.shape(name)
        config.vocab_size, config.pad_token_id = VOCABULARY, 256
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15)
    model.save_pretrained(path)
    for file in bench.model().glob("*token*"):
        shutil.copy(file, path)
    shutil.copy(bench.model() / "chat_template.jinja", path)
    return path


TUPLES = ["bloom", "falcon", "mpt", "gptj", "codegen", "bamba"]  # families whose layers return more than states


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3_text", "phi", "phi3", "minicpm3", "lfm2", *TUPLES])
def test_a_model_of_another_family(bench, tmp_path, name):
    """Also with latent attention, whose inputs have a dimension more, and with convolutions, which stay as they are."""
    base = write(bench, tmp_path / "base", name)
    quantizer, run = AWQ(bits=8, group_size=16).build(), bench.trained(base)
    made = quantizer.quantize(run, Artifact(base), run.output / "quantized")
    plain, again = (AutoModelForCausalLM.from_pretrained(path) for path in (base, made.path))
    with torch.no_grad():
        wanted, found = plain(TOKENS).logits, again(TOKENS).logits
        assert 0 < (found - wanted).norm() < 0.05 * wanted.norm(), "8 bits are near"
        plain.load_state_dict(quantizer.restore(made), strict=False)
        torch.testing.assert_close(plain(TOKENS).logits, found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("quantizer", [GPTQ(bits=3), AWQ(bits=3)], ids=["gptq", "awq"])
def test_sizes_that_no_group_divides(bench, tmp_path, quantizer):
    base = bench.model_of(37, 67)
    run = bench.trained(base)
    made = quantizer.build().quantize(run, Artifact(base), run.output / "quantized")
    plain, again = (AutoModelForCausalLM.from_pretrained(path) for path in (base, made.path))
    plain.load_state_dict(quantizer.build().restore(made), strict=False)
    with torch.no_grad():
        torch.testing.assert_close(plain(TOKENS).logits, again(TOKENS).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "quantizer"),
    [
        ("qwen3_moe", RTN(group_size=16)),
        ("qwen3_moe", GPTQ(bits=3, group_size=16)),
        ("qwen3_moe", AWQ(group_size=16, sym=True)),
        ("qwen3_moe", FP8()),
        ("mixtral", RTN(group_size=16)),
        ("mixtral", GPTQ(bits=3, group_size=16)),
        ("mixtral", AWQ(group_size=16, sym=True)),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_experts_are_quantized_one_by_one(bench, tmp_path, family, quantizer):
    """Plain transformers stacks them again as it loads, and answers as the model with the weights that were written."""
    base = write(bench, tmp_path / "base", family)
    run = bench.trained(base)
    made = quantizer.build().quantize(run, Artifact(base), run.output / "quantized")
    plain, again = (AutoModelForCausalLM.from_pretrained(path) for path in (base, made.path))
    own, stacked = quantizer.build().restore(made), plain.state_dict()
    with safe_open(base / "model.safetensors", "pt") as files:
        assert own.keys() == set(files.keys()), "all weights have the names of the model's own files"
    own = {name.replace(".block_sparse_moe.", ".mlp."): weight for name, weight in own.items()}
    cut = ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    for name in stacked:
        if "experts." in name:
            place, _, matrix = name.rpartition(".")
            parts = cut[:2] if matrix == "gate_up_proj" else cut[2:]
            each = [torch.cat([own.pop(f"{place}.{n}.{part}.weight") for part in parts]) for n in range(4)]
            assert not torch.equal(torch.stack(each), stacked[name])
            stacked[name] = torch.stack(each)
    plain.load_state_dict(stacked | own)
    with torch.no_grad():
        torch.testing.assert_close(plain(TOKENS).logits, again(TOKENS).logits, rtol=1e-4, atol=1e-4)


def test_an_expert_is_calibrated_on_the_tokens_that_reach_it():
    """Not on padding; and one that no token reaches has nothing to calibrate on."""
    layer = ready("qwen3_moe").model.layers[0].mlp
    states = torch.randn(20, 32, generator=torch.Generator().manual_seed(0))
    chosen = torch.arange(40).view(20, 2) % 3
    shares = torch.rand(20, 2, generator=torch.Generator().manual_seed(1))
    apart = separate(copy.deepcopy(layer))
    with torch.no_grad():
        torch.testing.assert_close(apart.experts(states, chosen, shares), layer.experts(states, chosen, shares))
    seen = {}
    for number, expert in apart.experts.named_children():
        expert.gate_proj.register_forward_hook(lambda module, args, _, number=number: seen.update({number: args[0]}))
    real = torch.arange(20) < 12
    ignoring(apart, real)
    with torch.no_grad():
        apart.experts(states, chosen, shares)
    assert seen.keys() == {"0", "1", "2"}
    for number, found in seen.items():
        assert torch.equal(found, states[real & (chosen == int(number)).any(1)])


@pytest.mark.parametrize(
    ("name", "quantizer", "match"),
    [
        ("gpt2", RTN(), "no linear layers"),
        ("granitemoe", RTN(), "stacks matrices|another name"),
        ("nanochat", RTN(), "transformers could not load it quantized"),
        ("qwen3_moe", RTN(sym=False), "zero points"),
        ("qwen3_moe", Mixed(bits_per_weight=10, choices=(4, 8), group_size=16), "different bits"),
    ],
)
def test_what_cannot_be_written_is_refused(bench, tmp_path, name, quantizer, match):
    base = write(bench, tmp_path / "base", name)
    run = bench.trained(base)
    with pytest.raises(GymError, match=match):
        quantizer.build().quantize(run, Artifact(base), run.output / "quantized")
    assert not (run.output / "quantized").exists()


#: Layers that are told what the tokens are, and layers that read the keys of another one.
LAYERED = {
    "gemma4_text": {
        "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 50, "num_hidden_layers": 4, "global_head_dim": 8,
        "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 7,
    },
    "gemma3n_text": {
        "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 50, "num_kv_shared_layers": 0, "laurel_rank": 8,
        "layer_types": ["full_attention"] * 2, "activation_sparsity_pattern": [0.0, 0.0], "altup_num_inputs": 2,
    },
}  # fmt: skip


def walk_of(name: str) -> Walk:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **SHAPE | LAYERED[name])).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    tokens = torch.randint(1, 50, (6, 20))
    everywhere = torch.ones(6, 20, dtype=torch.bool)
    return Walk(model, Rows(tokens, everywhere, everywhere & (torch.arange(20) < 19), 2))


def test_samples_of_every_batch_are_computed_as_the_model_does():
    walk = walk_of("gemma4_text")
    for number, layer in enumerate(walk.layers):
        walk.forward(number, layer)
    walk.check()
    with torch.no_grad():
        wanted = walk.model(walk.rows.tokens, use_cache=False).logits[walk.rows.predicts]
    torch.testing.assert_close(torch.cat([logits for _, logits in walk.logits()]), wanted, rtol=1e-4, atol=1e-4)
    first, last = walk.calls[0][0].options["position_embeddings"], walk.calls[-1][0].options["position_embeddings"]
    assert all(one is other for one, other in zip(first, last, strict=True)), "what is the same is held once"


def test_a_model_of_several_streams_of_states_is_refused():
    with pytest.raises(GymError, match="Gemma3nForCausalLM cannot be computed layer by layer"):
        walk_of("gemma3n_text")

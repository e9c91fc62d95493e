"""Quantizers of the moment `load`: every variant, the traps of their libraries, and adapters that train beside them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from gym_adapters.tuners.loftq import LoftQAdapter
from gym_core import GymError, Quantizer, load_recipe
from gym_core.discovery import entries
from gym_core.loading import load, load_component
from gym_plan.plan import plan
from gym_quant import EETQ, HQQ, Bnb4bit, Bnb8bit, Quanto, TorchAO
from gym_quant.load_time.eetq import EetqCodec
from gym_testkit import tiny
from gym_testkit.bench import Bench
from gym_torch.checkpoints.open_artifact import open_artifact, opened
from gym_torch.model import mapped_weights
from gym_torch.model.adapted import AdaptedModel, adapt
from gym_torch.quantization.weights import quantized_layers

VARIANTS: list[Quantizer] = [
    Bnb4bit(),
    Bnb4bit(quant_type="fp4", double_quant=False, blocksize=128),
    Bnb8bit(),
    *(HQQ(bits=bits) for bits in (1, 2, 3, 4, 5, 6, 8)),  # type: ignore[arg-type]
    HQQ(bits=4, group_size=32),
    *(Quanto(weights=weights) for weights in ("int2", "int4", "int8", "float8")),  # type: ignore[arg-type]
    *(TorchAO(weights=weights) for weights in ("int8", "int4", "float8")),  # type: ignore[arg-type]
]
#: Bits of a weight `[384, 192]` with all that is stored of it.
BITS = [4.128, 4.25, 8.167, 1.5, 2.5, 3.722, 4.5, 8.5, 8.5, 8.5, 5.0, 2.667, 4.667, 8.167, 8.167, 8.208, 8.625, 8.167]
TOKENS = torch.tensor([[5, 3, 8, 1, 9, 2, 2, 7]])


def told(quantizer: Quantizer) -> str:
    return f"{type(quantizer).__name__} {quantizer.model_dump()}"


@pytest.mark.parametrize(("quantizer", "bits"), zip(VARIANTS, BITS, strict=True), ids=map(told, VARIANTS))
def test_what_is_stored_is_what_is_declared_and_within_the_bound(quantizer: Quantizer, bits: float) -> None:
    codec = quantizer.build()
    draw = torch.Generator().manual_seed(0)
    for shape in ((384, 192), (37, 67), (256, 128), (40, 96)):  # of the last, rows end within a block
        weight = torch.randn(shape, generator=draw)
        stored = codec.encode(weight)
        size = sum(tensor.nbytes for tensor in stored.values())
        assert size == quantizer.declared_bytes({"w": shape})
        assert shape != (384, 192) or round(8 * size / weight.numel(), 3) == bits
        error = float((codec.decode(stored, weight.shape) - weight).norm() / weight.norm())
        bound = quantizer.error_bound()
        assert bound is None or 0.3 * bound < error <= bound


def trained(
    bench: Bench, adapter: dict[str, Any], quantization: Any = "bnb_4bit", name: str = "run", **train: Any
) -> Any:
    """Train a few steps over a quantized tiny model; return what finished."""
    recipe = bench.recipe("sft", **train) | {"adapter": adapter}
    recipe["model"] = {"path": recipe["model"], "quantization": quantization}
    return bench.run(recipe, name)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    torch.set_num_threads(1)
    return Bench(tmp_path)


def loaded(path: Path, quantizer: Quantizer | None) -> Any:
    return mapped_weights.load(path, dtype=torch.float32, quantizer=quantizer)


def adapted_on(path: Path, adapter: dict[str, Any], quantizer: Quantizer | None = None) -> AdaptedModel:
    """Adapt a model as a run does before its first step."""
    recipe = load_recipe({"model": str(path), "data": "none.jsonl", "algorithm": "sft", "adapter": adapter})
    return adapt(loaded(path, quantizer), recipe)


def test_bitsandbytes_stores_the_same_after_it_was_evaluated(bench: Bench) -> None:
    """Its own layer repacks weights in the first pass of evaluation on some CPUs, and dequantizes noise afterwards."""
    model = loaded(bench.model_of(64, 128), Bnb4bit(double_quant=False)).eval()
    before = {name: layer.weight for name, layer in quantized_layers(model).items()}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(TOKENS)
    assert all(torch.equal(layer.weight, before[name]) for name, layer in quantized_layers(model).items())


@pytest.mark.parametrize(
    "quantizer", [Bnb4bit(), Bnb8bit(), HQQ(), Quanto(), TorchAO()], ids=lambda each: type(each).__name__
)
def test_an_adapter_learns_beside_every_method_and_is_read_back_exactly(bench: Bench, quantizer: Quantizer) -> None:
    name = {Bnb4bit: "bnb_4bit", Bnb8bit: "bnb_8bit", HQQ: "hqq", Quanto: "quanto", TorchAO: "torchao"}[type(quantizer)]
    finished = trained(bench, {"name": "lora", "rank": 4}, name, max_steps=4)
    losses = finished.series("loss")
    assert losses[-1] < losses[0]
    recipe = {"name": "lora", "rank": 4}
    first, second = (adapted_on(bench.model(), recipe, quantizer) for _ in range(2))
    for adapted in (first, second):
        adapted.load(adapted.read(finished.outcome.artifact.path))
    with torch.no_grad():
        assert torch.equal(first.model.eval()(TOKENS).logits, second.model.eval()(TOKENS).logits)


def test_lora_is_merged_into_the_base_as_it_was_before(bench: Bench) -> None:
    finished = trained(bench, {"name": "lora", "rank": 4, "target_modules": "q_proj"}, max_steps=3)
    merged = dict(opened(finished.outcome.artifact).plain().weights)
    base = load_file(bench.model() / "model.safetensors")
    assert {name for name, weight in base.items() if not torch.equal(merged[name], weight)} == {
        name for name in base if "q_proj" in name
    }
    pairs = load_file(finished.outcome.artifact.path / "adapter_model.safetensors")
    for name, weight in merged.items():
        if "q_proj" in name:
            half = f"base_model.model.{name.removesuffix('.weight')}.lora"
            update = 2 * pairs[f"{half}_B.weight"] @ pairs[f"{half}_A.weight"]  # alpha is two times the rank
            torch.testing.assert_close(weight, base[name] + update, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("quantizer", [Bnb4bit(), None], ids=["as trained", "as exported"])
def test_lora_of_tied_embeddings_leaves_the_head_of_the_base(bench: Bench, quantizer: Quantizer | None) -> None:
    """Merged, the model computes what the adapter does: embeddings and head are no longer one."""
    adapted = adapted_on(
        bench.model(), {"name": "lora", "rank": 4, "target_modules": ["embed_tokens", "q_proj"]}, quantizer
    )
    assert adapted.model.config.tie_word_embeddings
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in adapted.model.parameters():
            if weight.requires_grad:
                weight.normal_(std=0.2)
        plain = adapted.merged_weights()
        weights = dict(plain.weights)
        model = AutoModelForCausalLM.from_config(plain.config)
        model.load_state_dict(weights)
        expected = adapted.model.eval()(TOKENS).logits
        torch.testing.assert_close(model.eval()(TOKENS).logits, expected, atol=1e-5, rtol=1e-4)
    base = load_file(bench.model() / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(weights["lm_head.weight"], base)
    assert (weights["model.embed_tokens.weight"] - base).norm() > 0.1 * base.norm()


def test_a_plan_counts_weights_in_a_few_bits(bench: Bench) -> None:
    recipe = bench.recipe("sft") | {"adapter": {"name": "lora", "rank": 4}}
    plain, quantized = (
        plan(load_recipe({**recipe, "model": {"path": recipe["model"], **more}}))
        for more in ({}, {"quantization": "bnb_4bit"})
    )
    assert (quantized.parameters, quantized.trainable) == (plain.parameters, plain.trainable)
    assert quantized.memory.weights < plain.memory.weights


@pytest.mark.parametrize("adapter", ["pissa", "loftq"])
def test_what_began_with_the_weights_is_merged_into_those(bench: Bench, adapter: str) -> None:
    finished = trained(bench, {"name": adapter, "rank": 4}, {"name": "hqq", "bits": 3}, max_steps=3)
    artifact = finished.outcome.artifact
    assert artifact.details["quantizer"] == "gym_quant:HQQ" and artifact.details["quantizer_options"]["bits"] == 3
    adapted = open_artifact(artifact)
    with torch.no_grad():
        expected, found = adapted.model.eval()(TOKENS).logits, adapted.merged()(TOKENS).logits
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert quantized_layers(adapted.model) and not quantized_layers(adapted.merged())


def loftq_on(path: Path, quantizer: Quantizer) -> LoftQAdapter:
    adapted = adapted_on(path, {"name": "loftq", "rank": 8}, quantizer)
    assert isinstance(adapted, LoftQAdapter)
    return adapted


@pytest.mark.parametrize("quantizer", [Bnb4bit(), HQQ(bits=2), Quanto(weights="int2")], ids=told)
def test_loftq_corrects_what_the_quantizer_of_its_base_rounds(bench: Bench, quantizer: Quantizer) -> None:
    path = bench.model_of(64, 128)
    base, plain = loaded(path, None), quantized_layers(loaded(path, quantizer))
    adapted = loftq_on(path, quantizer)
    size = sum(tensor.nbytes for layer in quantized_layers(adapted.model).values() for tensor in layer.buffers())
    adapted.initialize()
    for name, layer in adapted.layers().items():
        weight = base.get_submodule(name).weight
        stored: Any = layer.get_base_layer()
        corrected = stored.weight + layer.get_delta_weight("default")
        assert float((corrected - weight).norm()) < 0.95 * float((plain[name].weight - weight).norm())
    held = sum(tensor.nbytes for layer in quantized_layers(adapted.model).values() for tensor in layer.buffers())
    assert held == size == sum(tensor.nbytes for layer in plain.values() for tensor in layer.buffers())


@pytest.mark.parametrize("option", ["bits", "block_size"])
def test_loftq_refuses_how_to_round_where_the_base_decides(bench: Bench, option: str) -> None:
    adapted = adapted_on(bench.model_of(64, 128), {"name": "loftq", "rank": 8, option: 4}, HQQ(bits=2))
    with pytest.raises(GymError, match=f"adapter.{option}: the quantizer of the base decides"):
        adapted.initialize()


def test_loftq_is_its_own_reference_and_comes_back_exactly(bench: Bench) -> None:
    path = bench.model_of(64, 128)
    adapted = loftq_on(path, HQQ(bits=2))
    adapted.initialize()
    adapted.model.eval()

    def logits(model: torch.nn.Module) -> Tensor:
        with torch.no_grad():
            found: Tensor = model(TOKENS).logits
        return found

    first = logits(adapted.model)
    for weight in adapted.model.parameters():
        if weight.requires_grad:
            weight.data = weight.data + 0.1
    after = logits(adapted.model)
    assert not torch.equal(after, first)
    assert adapted.at_start is not None
    with adapted.at_start():
        assert torch.equal(logits(adapted.model), first)
    assert torch.equal(logits(adapted.model), after)
    again = loftq_on(path, HQQ(bits=2))
    again.load({name: tensor.clone() for name, tensor in adapted.state().items()})
    assert torch.equal(logits(again.model.eval()), after)
    with again.at_start():  # type: ignore[misc]
        assert torch.equal(logits(again.model), first)


def test_a_missing_library_is_said_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    monkeypatch.setattr("gym_quant.config.load_time.find_spec", lambda name: None)
    options = {"path": str(tiny.write_model(tmp_path / "model")), "quantization": "hqq"}
    recipe = load_recipe({"model": options, "data": "none.jsonl", "algorithm": "sft", "adapter": "lora"})
    with pytest.raises(GymError, match=r"hqq is not installed[\s\S]*pip install 'gym-quant\[hqq\]', or use quanto"):
        recipe.check()


LOADING = [entry.name for entry in entries("quantizers") if entry.dist == "gym-quant" and load(entry).moment == "load"]


def works_here(name: str) -> str:
    """Return why a quantizer does not work on this machine's CPU, nothing where it does."""
    quantizer: Quantizer = load_component("quantizers", name)[1]()
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    try:
        quantizer.check()
        codec = quantizer.build()
        codec.check(PretrainedConfig(), torch.device("cpu"))
    except GymError as error:
        return str(error)
    assert (codec.decode(codec.encode(weight), weight.shape) - weight).norm() < weight.norm()
    return ""


@pytest.mark.parametrize("name", LOADING)
def test_what_does_not_work_here_says_what_it_needs_and_what_does(name: str) -> None:
    if why := works_here(name):
        assert re.search(r"is not installed|on CUDA alone", why) and len(why.splitlines()) <= 4
        instead = re.search(r"use (\w+)", why)
        assert instead and instead[1] in LOADING and not works_here(instead[1])


def test_kernels_of_a_gpu_are_refused_on_a_cpu_with_what_works_here() -> None:
    with pytest.raises(GymError, match=r"run on CUDA alone, and this run is on cpu[\s\S]*use bnb_8bit"):
        EetqCodec(EETQ()).check(PretrainedConfig(), torch.device("cpu"))


def test_bits_that_a_method_does_not_have_are_refused() -> None:
    model = {"path": "tiny", "quantization": {"name": "hqq", "bits": 7}}
    with pytest.raises(GymError, match=r"model\.quantization\.bits[\s\S]*1, 2, 3, 4, 5, 6 or 8"):
        load_recipe({"model": model, "data": "none.jsonl", "algorithm": "sft", "adapter": "lora"})


@pytest.mark.gpu
@pytest.mark.parametrize("quantizer", [*VARIANTS, EETQ()], ids=told)
def test_a_gpu_computes_with_the_same_weights(quantizer: Quantizer) -> None:
    codec, device = quantizer.build(), torch.device("cuda")
    try:
        codec.check(PretrainedConfig(), device)
    except GymError as error:  # a package that is not installed
        pytest.skip(str(error))
    weight = torch.randn(256, 128, generator=torch.Generator().manual_seed(0))
    stored = {name: tensor.to(device) for name, tensor in codec.encode(weight.to(device)).items()}
    decoded = codec.decode(stored, weight.shape).float()
    bound = quantizer.error_bound()
    assert bound is None or float((decoded.cpu() - weight).norm() / weight.norm()) <= bound
    rows = torch.randn(5, 128, device=device, requires_grad=True)
    found, wanted = codec.linear(rows, stored, weight.shape), torch.nn.functional.linear(rows, decoded)
    assert float((found - wanted).norm() / wanted.norm()) < 0.02
    (back,), (expected,) = (torch.autograd.grad(each.sum(), rows) for each in (found, wanted))
    assert float((back - expected).norm() / expected.norm()) < 0.02


@pytest.mark.parametrize(("kind", "bits"), [("int2", 2), ("int4", 4)])
def test_quanto_decodes_as_its_library_and_compiles_nothing(
    kind: Any, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's own tensors give the same numbers, with what it would compile to unpack them written out here."""
    library = pytest.importorskip("optimum.quanto")

    def unpack(packed: Any) -> torch.Tensor:
        rows = [
            bytes(int(code) >> shift & 2**bits - 1 for code in row)
            for shift in range(0, 8, bits)
            for row in packed._data
        ]
        return torch.tensor([list(row) for row in rows], dtype=torch.uint8)[: packed.shape[0]]

    monkeypatch.setattr("optimum.quanto.library.extensions.extension.load", None)
    monkeypatch.setattr("optimum.quanto.tensor.packed.PackedTensor.unpack", unpack)
    codec = Quanto(weights=kind).build()
    for shape in ((24, 64), (37, 67), (8, 256)):
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        layer = torch.nn.Linear(shape[1], shape[0], bias=False)
        layer.weight = torch.nn.Parameter(weight)
        theirs = library.QLinear.from_module(layer, weights=library.qtypes[f"q{kind}"])
        theirs.freeze()
        assert torch.equal(codec.decode(codec.encode(weight), weight.shape), theirs.weight.dequantize())


@pytest.mark.parametrize("quantizer", ["bnb_4bit", "hqq", "quanto"])
def test_adapters_in_bf16_learn_as_those_in_fp32(bench: Bench, quantizer: str) -> None:
    """The adapters themselves stay in fp32 where the run computes in bf16: steps are smaller than bf16 can add."""
    whole, half = (
        trained(bench, {"name": "lora", "rank": 4}, quantizer, precision, max_steps=6, precision=precision)
        for precision in ("fp32", "bf16")
    )
    first, last = (torch.tensor([found.series("loss")[at] for found in (whole, half)]) for at in (0, -1))
    assert (last < first).all() and abs(last[0] - last[1]) < 0.1 * (first[0] - last[0])
    pairs = load_file(half.outcome.artifact.path / "adapter_model.safetensors")
    assert pairs and all(weight.dtype == torch.float32 for weight in pairs.values())

"""Checkpoints that other programs quantized are bases for adapters: written by plain transformers, or by hand as it is done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel, Qwen3MoeConfig

from gym_adapters import LoRA
from gym_core import GymError
from gym_testkit.bench import Bench
from gym_torch.model import mapped_weights
from gym_torch.model.adapted import build_adapter
from gym_torch.quantization.weights import quantized_layers

TOKENS = torch.tensor([[5, 3, 8, 1, 9, 2, 2, 7]])
BLOCK = (16, 32)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return Bench(tmp_path_factory.mktemp("base")).model_of(64, 96)


def with_weights(base: Path, weight_of: Callable[[str], torch.Tensor | None]) -> PreTrainedModel:
    """Return the model with other weights of linear layers, in fp32."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    for name, weight in model.named_parameters():
        if (other := weight_of(name)) is not None:
            weight.data = other.reshape(weight.shape).float()
    return model


def bitsandbytes(base: Path, into: Path, **options: Any) -> PreTrainedModel:
    """Have plain transformers write it; return the model with the weights that the library says they are."""
    functional = pytest.importorskip("bitsandbytes").functional
    config = BitsAndBytesConfig(**options)
    model = AutoModelForCausalLM.from_pretrained(base, quantization_config=config, dtype=torch.float32)
    model.save_pretrained(into)

    def weight_of(name: str) -> torch.Tensor | None:
        weight = model.get_parameter(name)
        if hasattr(weight, "quant_state"):
            weight.quant_state.shape = torch.Size((1, weight.quant_state.shape.numel()))  # rows of 96 come out wrong
            return functional.dequantize_4bit(weight.data, weight.quant_state)
        return weight.data.float() * weight.SCB[:, None] / 127 if hasattr(weight, "SCB") else None

    return with_weights(base, weight_of)


def fp8(base: Path, into: Path) -> PreTrainedModel:
    """Write numbers of 8 bits with a scale for each block, the last ones of a side smaller, as DeepSeek-V3 does."""
    stored, whole = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for name, weight in load_file(base / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            stored[name] = weight
            continue
        scales = torch.empty(-(-weight.shape[0] // BLOCK[0]), -(-weight.shape[1] // BLOCK[1]))
        codes, whole[name] = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty(weight.shape)
        for row, column in torch.cartesian_prod(torch.arange(scales.shape[0]), torch.arange(scales.shape[1])).tolist():
            at = tuple(slice(i * size, (i + 1) * size) for i, size in zip((row, column), BLOCK, strict=True))
            scales[row, column] = weight[at].abs().max() / 448
            codes[at] = (weight[at] / scales[row, column]).to(codes.dtype)
            whole[name][at] = codes[at].float() * scales[row, column]
        stored |= {name: codes, f"{name}_scale_inv": scales}
    shutil.copytree(base, into)
    save_file(stored, into / "model.safetensors", metadata={"format": "pt"})
    told(into, quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=list(BLOCK))
    return with_weights(base, whole.get)


def autofp8(base: Path, into: Path) -> PreTrainedModel:
    """Write numbers of 8 bits with one scale, and one of the inputs, as AutoFP8 does (`activation_scheme: static`)."""
    stored, whole = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for name, weight in load_file(base / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            stored[name] = weight
            continue
        codes, scale = (weight * (448 / weight.abs().max())).to(torch.float8_e4m3fn), weight.abs().max() / 448
        stored |= {name: codes, f"{name}_scale": scale.clone()}
        stored[name.replace(".weight", ".input_scale")] = torch.tensor(0.02)
        whole[name] = codes.float() * scale
    shutil.copytree(base, into)
    save_file(stored, into / "model.safetensors", metadata={"format": "pt"})
    told(into, quant_method="fp8", activation_scheme="static", ignored_layers=["lm_head"], kv_cache_scheme=None)
    return with_weights(base, whole.get)


def compressed(base: Path, into: Path, inputs: dict[str, Any] | None = None, **weights: Any) -> PreTrainedModel:
    """Have compressed-tensors write 8 bits as llm-compressor does; return the model with the weights that it reads back."""
    compressors = pytest.importorskip("compressed_tensors.compressors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    told_weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"} | weights
    inputs = inputs or {"dynamic": True, "num_bits": 8, "type": told_weights["type"], "strategy": "token"}
    args = quantization.QuantizationArgs(**told_weights)
    scheme = quantization.QuantizationScheme(
        targets=["Linear"], weights=args, input_activations=quantization.QuantizationArgs(**inputs)
    )
    kind = f"{told_weights['type']}-quantized"
    library = compressors.BaseCompressor.get_value_from_registry(kind)
    stored, whole = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    draw = torch.Generator().manual_seed(0)
    for name, weight in load_file(base / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            stored[name] = weight
            continue
        sides = told_weights.get("block_structure") or [
            weight.shape[0] if args.strategy == "tensor" else 1,
            weight.shape[1],
        ]
        counts = [-(-size // side) for size, side in zip(weight.shape, sides, strict=True)]
        scale = torch.rand(counts, generator=draw) * 0.01 + weight.abs().max() / (448 if args.type == "float" else 100)
        zero = torch.randint(-9, 9, counts, generator=draw).to(torch.int8) if not args.symmetric else None
        held = {"weight": weight, "weight_scale": scale.flatten() if args.strategy == "tensor" else scale}
        held = library.compress(held | ({"weight_zero_point": zero} if zero is not None else {}), scheme)
        whole[name] = library.decompress(held, scheme)["weight"]
        module = name.removesuffix("weight")
        stored |= {f"{module}{key}": each.contiguous() for key, each in held.items()}
        if inputs["dynamic"] is False:
            stored[f"{module}input_scale"] = torch.tensor([0.02])
    shutil.copytree(base, into)
    save_file(stored, into / "model.safetensors", metadata={"format": "pt"})
    group = {"targets": ["Linear"], "weights": told_weights, "input_activations": inputs, "format": kind}
    told(into, quant_method="compressed-tensors", format=kind, config_groups={"group_0": group}, ignore=["lm_head"])
    model = with_weights(base, whole.get)
    read = mapped_weights.load(into, dtype=torch.float32)
    assert all(
        torch.equal(quantized_layers(read)[name.removesuffix(".weight")].weight, each) for name, each in whole.items()
    )
    return model


def told(path: Path, **options: Any) -> None:
    """Have a configuration say how the model is quantized."""
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": options}))


NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
MADE: dict[str, tuple[Callable[..., PreTrainedModel], dict[str, Any]]] = {
    "nf4": (bitsandbytes, NF4),
    "nf4, double": (bitsandbytes, {**NF4, "bnb_4bit_use_double_quant": True}),
    "fp4": (bitsandbytes, {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}),
    "int8": (bitsandbytes, {"load_in_8bit": True}),
    "fp8": (fp8, {}),
    "autofp8": (autofp8, {}),
    "w8a8 static": (compressed, {"inputs": {"dynamic": False, "num_bits": 8, "type": "float"}}),
    "w8a8 channel": (compressed, {"strategy": "channel"}),
    "w8a8 block": (compressed, {"strategy": "block", "block_structure": [16, 40]}),
    "w8 int block": (compressed, {"strategy": "block", "block_structure": [24, 32], "type": "int", "symmetric": False}),
}


@pytest.mark.parametrize("kind", MADE)
def test_what_others_quantized_is_a_base_for_adapters(kind: str, base: Path, tmp_path: Path) -> None:
    make, options = MADE[kind]
    wanted = make(base, tmp_path / "made", **options)
    model = mapped_weights.load(tmp_path / "made", dtype=torch.float32).eval()
    assert len(quantized_layers(model)) == 14
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS).logits, wanted(TOKENS).logits, atol=1e-5, rtol=1e-4)
        half = mapped_weights.load(tmp_path / "made", dtype=torch.bfloat16).eval()(TOKENS).logits.float()
    assert (half - wanted(TOKENS).logits).norm() < 0.03 * half.norm(), "scales keep their precision"
    adapted = build_adapter(LoRA(rank=2), model)
    adapted.model(TOKENS, labels=TOKENS).loss.backward()
    trained = [weight for weight in adapted.model.parameters() if weight.requires_grad]
    assert trained and all(weight.grad is not None for weight in trained)


def test_experts_that_others_quantized_are_refused(tmp_path: Path) -> None:
    shape = Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(shape).save_pretrained(tmp_path / "mixture")
    weights = load_file(tmp_path / "mixture/model.safetensors")
    held = {name: weight.to(torch.float8_e4m3fn) for name, weight in weights.items() if ".experts." in name}
    save_file(
        weights | held | {f"{name}_scale_inv": torch.ones(1, 1) for name in held},
        tmp_path / "mixture/model.safetensors",
        metadata={"format": "pt"},
    )
    told(tmp_path / "mixture", quant_method="fp8", activation_scheme="dynamic", weight_block_size=[128, 128])
    with pytest.raises(GymError, match=r"experts that come quantized are not read here .*\n.*with `quantization`"):
        mapped_weights.load(tmp_path / "mixture")


@pytest.mark.parametrize("kind", ["autofp8", "w8a8 static", "w8a8 block"])
def test_scales_of_inputs_are_said_and_not_used(kind: str, base: Path, tmp_path: Path, capsys: Any) -> None:
    make, options = MADE[kind]
    make(base, tmp_path / "made", **options)
    mapped_weights.load(tmp_path / "made")
    said = "14 scales of inputs are not used" in "".join(capsys.readouterr())
    assert said == (kind != "w8a8 block")


@pytest.mark.parametrize(
    "scheme", [{"quant_method": "fp8"}, {"quant_method": "compressed-tensors", "config_groups": {}}]
)
def test_scales_that_fit_no_weight_are_refused(base: Path, tmp_path: Path, scheme: dict[str, Any]) -> None:
    compressed(base, tmp_path / "made", strategy="block", block_structure=[16, 32])
    told(tmp_path / "made", **scheme)
    with pytest.raises(GymError, match=r"there are scales \[.*\] for a weight \[.*\], and .*blocks"):
        mapped_weights.load(tmp_path / "made")

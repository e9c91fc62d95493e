"""Models that come quantized by GPTQ, AWQ or AQLM: packed here code by code, as their papers' programs do, and read exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gym_torch_bench import make_run
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, PretrainedConfig

from gym_adapters import LoRA
from gym_core import GymError
from gym_torch import Transformers
from gym_torch.model import mapped_weights
from gym_torch.model.adapted import adapt
from gym_torch.model.empty_model import empty
from gym_torch.model.loading import LoadedModel
from gym_torch.quantization.stored_formats import FORMATS, format_of
from gym_torch.quantization.weights import quantized_layers

GROUP = 16
Codes = npt.NDArray[np.int64]
#: What a file holds, and the weight `[out, in]` that it stands for.
Packed = tuple[dict[str, torch.Tensor], torch.Tensor]


def words(codes: Codes, bits: int, order: tuple[int, ...]) -> torch.Tensor:
    """Pack the columns of codes into 32 bits: the code of column `order[i]` of as many as fit comes i-th, lowest first."""
    if 32 % bits:  # one row of codes is one number, the first code lowest, cut into words of 32 bits
        count = -(-codes.shape[1] * bits // 32)
        rows = [sum(int(code) << (bits * place) for place, code in enumerate(row)) for row in codes]
        cut = [[row >> (32 * word) & 0xFFFFFFFF for word in range(count)] for row in rows]
        return torch.from_numpy(np.array(cut, dtype=np.uint32).view(np.int32))
    each = 32 // bits
    packed = np.zeros((codes.shape[0], codes.shape[1] // each), dtype=np.uint32)
    for row in range(packed.shape[0]):
        for column in range(packed.shape[1]):
            for place in range(each):
                code = int(codes[row, column * each + order[place]])
                packed[row, column] |= np.uint32(code << (bits * place))
    return torch.from_numpy(packed.view(np.int32))


def gptq(shape: tuple[int, int], draw: np.random.Generator, bits: int = 4, late: bool = False) -> Packed:
    out, columns = shape
    codes, zeros = draw.integers(2**bits, size=shape), draw.integers(1, 2**bits, size=(columns // GROUP, out))
    scales = draw.uniform(0.01, 0.03, size=zeros.shape).astype(np.float16)
    index = draw.permutation(columns) // GROUP  # columns of a group need not lie together
    plain = tuple(range(32 // bits))
    held = {
        "qweight": words(codes, bits, plain).T.contiguous(),
        "qzeros": words(zeros if late else zeros - 1, bits, plain),
        "scales": torch.from_numpy(scales),
        "g_idx": torch.from_numpy(index.astype(np.int32)),
    }
    return held, torch.from_numpy((codes - zeros.T[:, index]) * scales.astype(np.float64).T[:, index]).float()


def awq(shape: tuple[int, int], draw: np.random.Generator) -> Packed:
    out, columns = shape
    codes, zeros = draw.integers(16, size=(columns, out)), draw.integers(16, size=(columns // GROUP, out))
    scales = draw.uniform(0.01, 0.03, size=zeros.shape).astype(np.float16)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    held = {
        "qweight": words(codes, 4, order),
        "qzeros": words(zeros, 4, order),
        "scales": torch.from_numpy(scales),
    }
    group = np.arange(columns) // GROUP
    return held, torch.from_numpy(((codes - zeros[group]) * scales.astype(np.float64)[group]).T).float()


def aqlm(shape: tuple[int, int], draw: np.random.Generator, books: int = 2, rows: int = 1) -> Packed:
    """Sum vectors of codebooks group by group, as the paper has it."""
    out, columns, width = *shape, 8
    codebooks = draw.normal(size=(books, 256, rows, width)).astype(np.float16) / 10
    codes = draw.integers(256, size=(out // rows, columns // width, books))
    scales = draw.uniform(0.5, 2, size=(out // rows, 1, 1, 1)).astype(np.float16)
    weight = np.zeros(shape)
    for row in range(out // rows):
        for group in range(columns // width):
            total = sum(codebooks[book, codes[row, group, book]].astype(np.float64) for book in range(books))
            place = slice(row * rows, (row + 1) * rows), slice(group * width, (group + 1) * width)
            weight[place] = total * float(scales[row, 0, 0, 0])
    held = {"codes": codes.astype(np.int8), "codebooks": codebooks, "scales": scales}
    return {name: torch.from_numpy(tensor) for name, tensor in held.items()}, torch.from_numpy(weight).float()


AQLM = {"quant_method": "aqlm", "in_group_size": 8, "nbits_per_codebook": 8}
KINDS: dict[str, tuple[Callable[..., Packed], dict[str, Any], dict[str, Any]]] = {
    "gptq": (gptq, {}, {"quant_method": "gptq", "bits": 4, "group_size": GROUP}),
    "gptq 8": (gptq, {"bits": 8}, {"quant_method": "gptq", "bits": 8, "group_size": GROUP}),
    "gptq 3": (gptq, {"bits": 3}, {"quant_method": "gptq", "bits": 3, "group_size": GROUP}),
    "gptq, other bits in layers": (
        gptq,
        {"bits": 8},
        {"quant_method": "gptq", "bits": 4, "dynamic": {".*": {"bits": 8}}},
    ),
    "aqlm": (aqlm, {}, {**AQLM, "num_codebooks": 2, "out_group_size": 1}),
    "aqlm, blocks": (aqlm, {"books": 1, "rows": 4}, {**AQLM, "num_codebooks": 1, "out_group_size": 4}),
    "gptq_v2": (gptq, {"late": True}, {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}),
    "awq": (awq, {}, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}),
}


def stored(source: Path, into: Path, kind: str) -> dict[str, torch.Tensor]:
    """Write a model with its linear layers quantized; return what weights they stand for."""
    pack, options, told = KINDS[kind]
    weights, draw, wanted = dict[str, torch.Tensor](), np.random.default_rng(0), dict[str, torch.Tensor]()
    for name, weight in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            weights[name] = weight
            continue
        held, wanted[name] = pack(tuple(weight.shape), draw, **options)
        weights |= {f"{name.removesuffix('weight')}{part}": tensor for part, tensor in held.items()}
    into.mkdir()
    for file in source.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    save_file(weights, into / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((into / "config.json").read_text())
    (into / "config.json").write_text(json.dumps(config | {"quantization_config": told}))
    return wanted


def load(path: Path, output: Path, **options: Any) -> LoadedModel:
    sections = {"model": Transformers(path=str(path), **options), "adapter": LoRA(rank=2)}
    run = make_run(path, output, sections=sections, precision="fp32")
    loaded: LoadedModel = run.recipe.model.build(run=run)
    return loaded


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_quantized_is_decoded_exactly_and_trains_adapters(
    kind: str, model_path: Path, tmp_path: Path
) -> None:
    wanted = stored(model_path, tmp_path / "stored", kind)
    model = load(tmp_path / "stored", tmp_path / "run").model
    layers = quantized_layers(model)
    assert {f"{name}.weight" for name in layers} == wanted.keys()
    for name, layer in layers.items():
        torch.testing.assert_close(layer.weight, wanted[f"{name}.weight"], atol=1e-6, rtol=1e-6)
    planned = empty(Transformers(path=str(tmp_path / "stored")), "fp32", None, torch.device("cpu")).model
    sizes = [sum(t.nbytes for m in quantized_layers(each).values() for t in m.buffers()) for each in (model, planned)]
    assert sizes[0] == sizes[1] > 0
    adapted = adapt(model, make_run(model_path, tmp_path / "run", sections={"adapter": LoRA(rank=2)}).recipe)
    tokens = torch.tensor([[5, 3, 8, 1]])
    adapted.model(tokens, labels=tokens).loss.backward()
    assert all(weight.grad is not None for weight in adapted.model.parameters() if weight.requires_grad)
    merged = dict(adapted.merged_weights().weights)
    assert all(torch.allclose(merged[name], weight, atol=1e-6) for name, weight in wanted.items())


@pytest.mark.parametrize(
    "told",
    [
        {"quant_method": "gptq", "bits": 5},
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        {"quant_method": "gptq", "bits": 4, "pack_dtype": "int8"},
        {"quant_method": "awq", "bits": 3},
        {"quant_method": "awq", "bits": 4, "version": "gemv"},
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
        {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"strategy": "block"}}}},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"strategy": "tensor_group"}}}},
        {"quant_method": "fp8", "activation_scheme": "no such scheme"},
    ],
    ids=lambda told: " ".join(map(str, told.values()))[:40],
)
def test_a_format_that_is_not_read_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(GymError, match="not read here"):
        format_of(PretrainedConfig(quantization_config=told))


def test_matrices_of_other_sizes_than_the_model_has_are_refused(model_path: Path, tmp_path: Path) -> None:
    stored(model_path, tmp_path / "stored", "awq")
    config = json.loads((tmp_path / "stored/config.json").read_text())
    (tmp_path / "stored/config.json").write_text(json.dumps(config | {"intermediate_size": 16}))
    with pytest.raises(GymError, match=r"_proj holds a matrix \[.*the model has \["):
        mapped_weights.load(tmp_path / "stored")


@pytest.mark.parametrize(
    "method", ["higgs", "fbgemm_fp8", "fp_quant", "modelopt", "quanto", "torchao", "no such method"]
)
def test_a_method_that_is_not_read_is_refused_by_name(method: str) -> None:
    """Also one that transformers would take for no quantization at all, or that needs a GPU to load."""
    with pytest.raises(
        GymError, match=f"quantized by `{method}` are not read here\\n.*use a copy in .*gptq.*`quantization`"
    ):
        format_of(PretrainedConfig(quantization_config={"quant_method": method}))


def test_experts_in_mxfp4_are_loaded_in_bf16(tmp_path: Path) -> None:
    """Two codes of E2M1 in a byte, the lower one first, and a power of two for each 32 columns (Open Compute Project, MX 1.0)."""
    shape = GptOssConfig(
        vocab_size=64, hidden_size=64, intermediate_size=32, num_hidden_layers=1, num_local_experts=2, head_dim=16,
        num_experts_per_tok=1, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=4096,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(shape).bfloat16().save_pretrained(tmp_path)
    weights, wanted = load_file(tmp_path / "model.safetensors"), dict[str, torch.Tensor]()
    draw, levels = torch.Generator().manual_seed(0), torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = weights.pop(name).shape
        codes = torch.randint(16, (experts, rows, columns // 32, 32), generator=draw)
        powers = torch.randint(115, 122, (experts, rows, columns // 32), generator=draw)
        numbers = levels[codes % 8] * torch.where(codes < 8, 1, -1) * 2.0 ** (powers[..., None] - 127)
        wanted[name] = numbers.view(experts, rows, columns).transpose(1, 2)
        weights[f"{name}_blocks"] = (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8)
        weights[f"{name}_scales"] = powers.to(torch.uint8)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    told = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": told}))
    model = mapped_weights.load(tmp_path, dtype=torch.bfloat16)
    assert wanted and all(torch.equal(model.get_parameter(name).float(), weight) for name, weight in wanted.items())
    assert "quantization_config" not in model.config.to_dict() and not hasattr(model, "hf_quantizer")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_decodes_the_same(kind: str) -> None:
    pack, options, told = KINDS[kind]
    held, wanted = pack((64, 32), np.random.default_rng(0), **options)
    found = FORMATS[told["quant_method"]](told).decode({name: t.cuda() for name, t in held.items()}, wanted.shape)
    torch.testing.assert_close(found.cpu(), wanted, atol=1e-6, rtol=1e-6)

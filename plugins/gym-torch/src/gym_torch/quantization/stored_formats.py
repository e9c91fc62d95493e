"""Quantized checkpoints of GPTQ, AWQ, AQLM and compressed-tensors. Linear layers keep the stored tensors and decode them.

`quant_method` of the configuration names the format. The kernels of these methods are for generation on GPUs; decoding in torch
lets adapters be trained over them on any device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gym_core import GymError, PluginError
from gym_core.discovery import entries
from gym_core.loading import load
from gym_torch.model_files import weight_files
from gym_torch.quantization.bitsandbytes_format import BitsAndBytes
from gym_torch.quantization.compressed_tensors_format import CompressedTensors
from gym_torch.quantization.fp8_format import Fp8
from gym_torch.quantization.packed_codes import BITS, groups, reordered, unpacked
from gym_torch.quantization.stored_format import StoredFormat, odd
from gym_torch.quantization.weight_codec import WeightCodec
from gym_torch.quantization.weights import STORED, matrix_of, stored_layer
from gym_torch.weight_names import in_files

PLAIN = "weight"  #: what a weight is called that is not packed


class Gptq(StoredFormat):
    """Codes `[in bits / 32, out]` without gaps, with a scale and a zero point for each group of inputs.

    At 3 bits 32 codes are packed into three integers, some of them across two. Layers may have other bits than the model
    (`dynamic` of GPTQModel): how many follows from the sizes.
    """

    tensors = ("qweight", "qzeros", "scales", "g_idx")
    reads = "2, 3, 4 or 8 bits in the format gptq or gptq_v2"

    @classmethod
    def unknown(cls, options: Mapping[str, Any]) -> str:
        """Return a number of bits or a kernel layout that is not supported."""
        read = {"bits": (2, 3, 4, 8), "checkpoint_format": ("gptq", "gptq_v2", None), "pack_dtype": ("int32", None)}
        return odd(options, read)

    def shape(self, stored: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape."""
        lines, out = stored["qweight"].shape
        columns = len(stored["g_idx"]) if "g_idx" in stored else lines * BITS // int(self.options["bits"])
        return torch.Size((out, columns))

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return `(code - zero) scale`, fp32."""
        bits = stored["qweight"].shape[0] * BITS // shape[1]
        codes = unpacked(stored["qweight"].T.contiguous(), bits)[:, : shape[1]]  # [out, in]
        zeros = unpacked(stored["qzeros"], bits)[:, : shape[0]]  # [groups, out]
        if (self.options.get("checkpoint_format") or "gptq") == "gptq":
            zeros = zeros + 1  # the first format stores one less
        group = stored.get("g_idx")
        index = groups(len(stored["scales"]), shape[1], codes.device) if group is None else group.long()
        return (codes - zeros.T[:, index]).float() * stored["scales"].float().T[:, index]


class Awq(StoredFormat):
    """Codes `[in, out / 8]` of 4 bits in an order of their own, with a scale and a zero point for each group of inputs."""

    tensors = ("qweight", "qzeros", "scales")
    reads = "4 bits in the version gemm"

    @classmethod
    def unknown(cls, options: Mapping[str, Any]) -> str:
        """Return a number of bits or a kernel layout that is not supported."""
        version = str(options.get("version") or "gemm").lower()
        return odd({**options, "version": version}, {"bits": (4, None), "version": ("gemm",)})

    def shape(self, stored: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape."""
        return torch.Size((stored["scales"].shape[1], stored["qweight"].shape[0]))

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return `(code - zero) scale`, fp32."""
        codes, zeros = (reordered(unpacked(stored[name], 4)) for name in ("qweight", "qzeros"))
        index = groups(len(zeros), shape[1], codes.device)
        return ((codes - zeros[index]).float() * stored["scales"].float()[index]).T.contiguous()


class Aqlm(StoredFormat):
    """Additive quantization (arXiv:2401.06118): a group of weights is a sum of vectors, one of each codebook, times a scale of
    its row of groups.

    Codes `[out / out_group, in / in_group, codebooks]`, signed; codebooks `[codebooks, 2^bits, out_group, in_group]`; scales
    `[out / out_group, 1, 1, 1]`.
    """

    tensors = ("codes", "codebooks", "scales")

    def shape(self, stored: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape."""
        rows, columns, _ = stored["codes"].shape
        return torch.Size((rows * stored["codebooks"].shape[2], columns * stored["codebooks"].shape[3]))

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the sums, scaled, fp32."""
        books = stored["codebooks"].float()
        codes = stored["codes"].long() % books.shape[1]  # files hold those of the upper half as negative numbers
        # [rows, columns, out_group, in_group]
        groups = sum(book[codes[..., index]] for index, book in enumerate(books))
        assert isinstance(groups, Tensor)
        return (groups * stored["scales"].float()).transpose(1, 2).reshape(shape)


class Encoded(StoredFormat):
    """Tensors of the codec of a load-time quantizer, with the shape of the weight; the configuration names the quantizer."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Build the quantizer. Raises GymError where its package or its library is missing."""
        super().__init__(options)
        made = options["quantizer"]
        entry = next((entry for entry in entries("quantizers") if entry.value == made), None)
        if entry is None:
            raise PluginError(f"the model was quantized by {made}, which is not installed", fix="install its package")
        quantizer = load(entry)(**options["quantizer_options"])
        quantizer.check()
        self.codec: WeightCodec = quantizer.build()
        self.tensors = tuple(options["tensors"])  # type: ignore[misc] # of each codec others

    def shape(self, stored: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape."""
        return torch.Size(stored["weight_shape"].tolist())

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the weight as the codec decodes it."""
        return self.codec.decode({name.removeprefix("weight_"): each for name, each in stored.items()}, shape)


GYM = "gym"  #: the `format` of a configuration that names no `quant_method`, so that nothing else loads the model
FORMATS: dict[str, type[StoredFormat]] = {
    "gptq": Gptq,
    "awq": Awq,
    "aqlm": Aqlm,
    "compressed-tensors": CompressedTensors,
    "fp8": Fp8,
    "bitsandbytes": BitsAndBytes,
    GYM: Encoded,
}
WHOLE = "mxfp4"  #: what transformers decodes while it loads, so that the model has plain weights in bf16


def format_of(shape: PretrainedConfig) -> StoredFormat | None:
    """Return the format of the weights of a model, and remove it from its configuration; None where weights are not quantized.


    Raises GymError where the format or one of its options is not supported.
    """
    told = getattr(shape, "quantization_config", None)
    options = told if isinstance(told, dict) or told is None else told.to_dict()
    if options is None:
        return None
    method = options.get("quant_method") or options.get("format", "")
    if method == WHOLE:  # else its kernels would take the codes as they are, and nothing can be trained
        shape.quantization_config = {**options, "dequantize": True}
        return None
    found = FORMATS.get(method)
    if found is None:
        raise GymError(
            f"weights quantized by `{method}` are not read here",
            key="model.path",
            fix=f"use a copy in {', '.join(sorted(FORMATS))} or {WHOLE}, or the model it was made of with `quantization`",
        )
    if wrong := found.unknown(options):
        raise GymError(
            f"weights of {method} with {wrong} are not read here",
            key="model.path",
            fix=f"use a copy with {found.reads}, or the model it was made of with `quantization`",
        )
    del shape.quantization_config
    return found(options)


def prepare(model: PreTrainedModel, path: Path, codec: StoredFormat) -> None:
    """Replace layers of a model without data by quantized layers without data, where the files have quantized weights."""
    there = _modules(path, codec)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear | Conv1D)}
    known = {} if there.keys() <= layers.keys() else in_files(model, (f"{name}.weight" for name in layers))
    for name, layer in layers.items():
        if stored := there.pop(known.get(f"{name}.weight", name).removesuffix(".weight"), None):
            empty = {key: torch.empty_like(tensor, device="meta") for key, tensor in stored.items()}
            shape, wanted = codec.shape(stored), matrix_of(layer, layer.get_parameter("weight")).shape
            if shape != wanted:
                raise GymError(
                    f"{name} holds a matrix {list(shape)} as its `quantization_config` reads, and the model has {list(wanted)}",
                    where=str(path),
                    key="model.path",
                    fix="use a copy whose configuration says how it is packed, or the model it was made of with `quantization`",
                )
            model.set_submodule(name, stored_layer(layer, codec, empty, shape))
    if experts := next((name for name in there if ".experts." in name), ""):
        raise GymError(
            f"experts that come quantized are not read here ({experts})",
            where=str(path),
            key="model.path",
            fix="use the model that it was made of, with `quantization`",
        )


def renamed(path: Path, codec: StoredFormat) -> dict[str, str]:
    """Return the mapping from names in the files to names in the model, in the form of transformers."""
    parts = {key: STORED + key.replace(".", "_") for key in codec.tensors if key != PLAIN}
    names = {rf"^(.+)\.{re.escape(key)}$": rf"\1.{own}" for key, own in parts.items()}
    there = _modules(path, codec)
    return names | {
        rf"^{re.escape(name)}\.{PLAIN}$": f"{name}.{STORED}{PLAIN}" for name in there if PLAIN in there[name]
    }


def _modules(path: Path, codec: StoredFormat) -> dict[str, dict[str, Tensor]]:
    """Return the stored tensors of each quantized module by its path; without data, except shapes."""
    found: dict[str, dict[str, Tensor]] = {}
    for file in weight_files(path):
        with safe_open(file, "pt") as weights:
            for key in weights.keys():  # noqa: SIM118 # it is no mapping
                if name := next((name for name in codec.tensors if key.endswith(f".{name}")), ""):
                    module = found.setdefault(key.removesuffix(f".{name}"), {})
                    module[name.replace(".", "_")] = _described(weights, key)
    marks = {name.replace(".", "_") for name in codec.marks or codec.tensors[:1]}
    return {module: tensors for module, tensors in found.items() if marks & tensors.keys()}


def _described(weights: Any, key: str) -> Tensor:
    """Return a tensor of a file: with data where it is a shape, else of its size and dtype without data."""
    part = weights.get_slice(key)
    shape = part.get_shape()
    if key.endswith("_shape") or ".quant_state." in key:
        whole: Tensor = weights.get_tensor(key)
        return whole
    one: Tensor = part[:1] if shape and shape[0] else weights.get_tensor(key)
    return torch.empty(shape, dtype=one.dtype, device="meta")

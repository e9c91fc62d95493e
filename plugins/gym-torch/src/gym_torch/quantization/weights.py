"""Quantized linear layers: the weight is stored as a codec encodes it, and decoded when it is used.

A quantizer of the moment `load` builds a `WeightCodec`, which encodes and decodes matrices. All codecs use the same layer. It is
an `nn.Linear`, or `Conv1D` of GPT-2, so adapters wrap it as any other. Its weight is not a parameter: it is decoded when it is
used, and again in the backward pass, so nothing of the size of a weight is saved.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gym_torch.quantization.weight_codec import CHANGE, ChangedCodec, WeightCodec, decoded, encoded

STORED = "stored_"  #: begins the names of the buffers of a layer that hold its weight


class Stored(nn.Module, ABC):
    """Base of layers with quantized weights in buffers, which casts of the model leave as they are."""

    @abstractmethod
    def plain_weights(self) -> dict[str, Callable[[], Tensor]]:
        """Return a function that decodes each weight, by the name of the weight in the layer that is not quantized."""

    @abstractmethod
    def plain(self, dtype: torch.dtype) -> nn.Module:
        """Return the layer with decoded weights as parameters, in `dtype`."""

    @abstractmethod
    def shapes(self) -> dict[str, torch.Size]:
        """Return the shape of each weight, by the name of the weight in the layer that is not quantized."""

    @abstractmethod
    def with_change(self, name: str, change: Tensor) -> Self:
        """Return a layer over the same tensors that computes with the sum of a weight and `change`.

        The change is stored as it is, not encoded.
        """

    @property
    @abstractmethod
    def numbers(self) -> int:
        """How many weights are stored."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move stored tensors with the model, and leave out casts."""
        kept = {name: self._buffers.pop(name) for name in list(self._buffers) if name.startswith(STORED)}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in kept.items():
            assert tensor is not None
            moved = fn(tensor)
            self.register_buffer(name, moved if moved.dtype == tensor.dtype else tensor.to(moved.device))
        return self


class QuantizedMatrix(Stored):
    """A layer with one matrix `[out, in]` that a codec stores; its bias is an ordinary parameter."""

    def __init__(
        self,
        codec: WeightCodec,
        stored: Mapping[str, Tensor],
        shape: torch.Size,
        bias: nn.Parameter | None = None,
        original: Callable[[], Tensor] | None = None,
    ) -> None:
        """Take the stored tensors; `original` reads the weight as it was before quantization."""
        nn.Module.__init__(self)
        self.codec, self.shape, self._original = codec, shape, original
        self.names = tuple(stored)
        for name, tensor in stored.items():
            self.register_buffer(STORED + name, tensor)
        self.register_parameter("bias", bias)
        self._is_hf_initialized = True  # transformers draws first values for what is not

    @property
    def stored(self) -> dict[str, Tensor]:
        """The stored tensors, by the names of the codec."""
        return {name: self.get_buffer(STORED + name) for name in self.names}

    @property
    def matrix(self) -> Tensor:
        """The decoded matrix `[out, in]`, a new tensor at each access: changing it has no effect."""
        return decoded(self.codec, self.stored, self.shape)

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """The decoded weight in the orientation of the layer that is not quantized."""

    def original(self) -> Tensor | None:
        """Return the weight before quantization, in the precision of its file; None where it is not available."""
        return self._original() if self._original else None

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., out]` for `[..., in]`."""
        found = self.codec.linear(x, self.stored, self.shape)
        return found if self.bias is None else found + self.bias.to(found.dtype)

    def plain_weights(self) -> dict[str, Callable[[], Tensor]]:
        """Return a function that decodes the weight."""
        return {"weight": lambda: self.weight}

    def shapes(self) -> dict[str, torch.Size]:
        """Return the shape of the weight."""
        return {"weight": torch.Size(reversed(self.shape)) if isinstance(self, Conv1D) else self.shape}

    def with_change(self, name: str, change: Tensor) -> Self:
        """Return a layer that adds `change` to the matrix."""
        made = copy.copy(self)
        made._buffers = dict(self._buffers)
        made.codec, stored = ChangedCodec.of(self.codec, self.stored, matrix_of(self, change).contiguous())
        made.names = tuple(stored)
        made.register_buffer(STORED + CHANGE, stored[CHANGE])
        return made

    @property
    def numbers(self) -> int:
        """How many weights are stored."""
        return self.shape.numel()


class QuantizedLinear(QuantizedMatrix, nn.Linear):
    """A linear layer."""

    def __init__(self, codec: WeightCodec, stored: Mapping[str, Tensor], shape: torch.Size, *more: Any) -> None:
        """Take what `QuantizedMatrix` does."""
        super().__init__(codec, stored, shape, *more)
        self.out_features, self.in_features = shape

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The matrix."""
        return self.matrix

    @torch.no_grad()
    def rounded(self, weight: Tensor) -> Tensor:
        """Return `weight` after encoding and decoding."""
        return decoded(self.codec, encoded(self.codec, weight), self.shape)

    @torch.no_grad()
    def quantize(self, weight: Tensor) -> None:
        """Store another weight in its place."""
        device = self.get_buffer(STORED + self.names[0]).device
        for name, tensor in encoded(self.codec, weight).items():
            self.register_buffer(STORED + name, tensor.to(device))

    def plain(self, dtype: torch.dtype) -> nn.Linear:
        """Return the layer with the decoded weight as a parameter, in `dtype`."""
        made = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        made.weight = nn.Parameter(self.weight.to(dtype), requires_grad=False)
        made.bias = self.bias
        return made

    def extra_repr(self) -> str:
        """Return sizes and codec for `repr`."""
        return f"{super().extra_repr()}, codec={type(self.codec).__name__}"


class QuantizedConv1D(QuantizedMatrix, Conv1D):
    """The linear layer of GPT-2, whose weight is `[in, out]`."""

    def __init__(self, codec: WeightCodec, stored: Mapping[str, Tensor], shape: torch.Size, *more: Any) -> None:
        """Take what `QuantizedMatrix` does: what is stored is the matrix `[out, in]`."""
        super().__init__(codec, stored, shape, *more)
        self.nf, self.nx = shape

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The matrix, turned."""
        return self.matrix.T.contiguous()

    def plain(self, dtype: torch.dtype) -> Conv1D:
        """Return the layer with the decoded weight as a parameter, in `dtype`."""
        with torch.device("meta"):
            made = Conv1D(self.nf, self.nx)
        made.weight = nn.Parameter(self.weight.to(dtype), requires_grad=False)
        made.bias = self.bias
        return made


def stored_layer(
    layer: nn.Module,
    codec: WeightCodec,
    stored: Mapping[str, Tensor],
    shape: torch.Size,
    original: Callable[[], Tensor] | None = None,
) -> QuantizedMatrix:
    """Return a quantized layer that replaces a linear layer or a `Conv1D`, with the stored matrix `[out, in]`."""
    kind = QuantizedConv1D if isinstance(layer, Conv1D) else QuantizedLinear
    return kind(codec, stored, shape, layer.bias, original)


def matrix_of(layer: nn.Module, weight: Tensor) -> Tensor:
    """Return the matrix `[out, in]` of a weight of a linear layer or a `Conv1D`."""
    return weight.T if isinstance(layer, Conv1D) else weight


def quantized(layer: nn.Module) -> QuantizedLinear | None:
    """Return the layer if it is quantized, else None."""
    return layer if isinstance(layer, QuantizedLinear) else None


def quantized_layers(model: nn.Module) -> dict[str, QuantizedMatrix]:
    """Return the layers of a model that are quantized, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, QuantizedMatrix)}


def stored_modules(model: nn.Module) -> dict[str, Stored]:
    """Return all quantized modules of a model, experts included, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Stored)}


def plain_state(
    model: PreTrainedModel, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, Tensor]]:
    """Yield the `state_dict` of a model with quantized weights decoded to its dtype in place of stored tensors.

    Only names that are `wanted` are decoded, one after another.
    """
    held = {f"{name}.{STORED}": module for name, module in stored_modules(model).items()}
    done = set[str]()
    for name, tensor in model.state_dict().items():
        before = name.partition(STORED)[0] + STORED
        if before not in held:
            if wanted(name):
                yield name, tensor
        elif before not in done:
            done.add(before)
            for own, weight in held[before].plain_weights().items():
                if wanted(before.removesuffix(STORED) + own):
                    yield before.removesuffix(STORED) + own, weight().to(model.dtype)

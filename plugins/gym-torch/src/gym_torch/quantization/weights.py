"""Linear layers whose weight is held in a few bits: what a quantizer that works at load time plugs into.

A quantizer of the moment `load` builds a `WeightCodec`, which turns a matrix into what is stored and back. The layer is the
same for all of them: it is an `nn.Linear`, or GPT-2's `Conv1D`, so adapters go beside it as beside any, and its weight, which no
optimizer sees, is computed where it is used. The backward pass computes it again, so nothing of the size of a weight is kept.
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
    """Base of layers that hold weights in a few bits, in buffers; no cast changes a bit of those."""

    @abstractmethod
    def plain_weights(self) -> dict[str, Callable[[], Tensor]]:
        """Return what computes each weight, by the name that a layer that is not quantized has for it."""

    @abstractmethod
    def plain(self, dtype: torch.dtype) -> nn.Module:
        """Return a layer that is not quantized and holds the weights it computes with."""

    @abstractmethod
    def shapes(self) -> dict[str, torch.Size]:
        """Return the shape of each weight, by the name that a layer that is not quantized has for it."""

    @abstractmethod
    def with_change(self, name: str, change: Tensor) -> Self:
        """Return a layer over the same tensors that computes with the sum of a weight and a change of its shape.

        The change is kept beside what is stored, as it is.
        """

    @property
    @abstractmethod
    def numbers(self) -> int:
        """How many weights are stored."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move what is stored with the rest of a model."""
        kept = {name: self._buffers.pop(name) for name in list(self._buffers) if name.startswith(STORED)}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in kept.items():
            assert tensor is not None
            moved = fn(tensor)
            self.register_buffer(name, moved if moved.dtype == tensor.dtype else tensor.to(moved.device))
        return self


class QuantizedMatrix(Stored):
    """A layer with one matrix `[out, in]` that is stored as a codec stores it; its bias is a parameter like any."""

    def __init__(
        self,
        codec: WeightCodec,
        stored: Mapping[str, Tensor],
        shape: torch.Size,
        bias: nn.Parameter | None = None,
        original: Callable[[], Tensor] | None = None,
    ) -> None:
        """Take the tensors; `original` reads the weight again as it was before it was quantized."""
        nn.Module.__init__(self)
        self.codec, self.shape, self._original = codec, shape, original
        self.names = tuple(stored)
        for name, tensor in stored.items():
            self.register_buffer(STORED + name, tensor)
        self.register_parameter("bias", bias)
        self._is_hf_initialized = True  # transformers draws first values for what is not

    @property
    def stored(self) -> dict[str, Tensor]:
        """What holds the matrix, by the names of the codec."""
        return {name: self.get_buffer(STORED + name) for name in self.names}

    @property
    def matrix(self) -> Tensor:
        """The matrix `[out, in]` that it computes with, computed anew: a change to it changes nothing."""
        return decoded(self.codec, self.stored, self.shape)

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """The same as a layer that is not quantized holds it."""

    def original(self) -> Tensor | None:
        """Return the weight before it was quantized, in the precision of its file; None where nothing holds it."""
        return self._original() if self._original else None

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., out]` of `[..., in]`, as a layer that is not quantized."""
        found = self.codec.linear(x, self.stored, self.shape)
        return found if self.bias is None else found + self.bias.to(found.dtype)

    def plain_weights(self) -> dict[str, Callable[[], Tensor]]:
        """Return what computes the weight."""
        return {"weight": lambda: self.weight}

    def shapes(self) -> dict[str, torch.Size]:
        """Return the shape of the weight."""
        return {"weight": torch.Size(reversed(self.shape)) if isinstance(self, Conv1D) else self.shape}

    def with_change(self, name: str, change: Tensor) -> Self:
        """Return a layer with a change beside the matrix."""
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
        """Return the weight that it would compute with if it stored this one."""
        return decoded(self.codec, encoded(self.codec, weight), self.shape)

    @torch.no_grad()
    def quantize(self, weight: Tensor) -> None:
        """Store another weight in its place."""
        device = self.get_buffer(STORED + self.names[0]).device
        for name, tensor in encoded(self.codec, weight).items():
            self.register_buffer(STORED + name, tensor.to(device))

    def plain(self, dtype: torch.dtype) -> nn.Linear:
        """Return a layer that holds the weight it computes with."""
        made = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        made.weight = nn.Parameter(self.weight.to(dtype), requires_grad=False)
        made.bias = self.bias
        return made

    def extra_repr(self) -> str:
        """Return its size and what stores it."""
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
        """Return a layer that holds the weight it computes with."""
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
    """Return what takes the place of a linear layer or a `Conv1D`, with its matrix `[out, in]` stored."""
    kind = QuantizedConv1D if isinstance(layer, Conv1D) else QuantizedLinear
    return kind(codec, stored, shape, layer.bias, original)


def matrix_of(layer: nn.Module, weight: Tensor) -> Tensor:
    """Return the matrix `[out, in]` of a weight of a linear layer or a `Conv1D`."""
    return weight.T if isinstance(layer, Conv1D) else weight


def quantized(layer: nn.Module) -> QuantizedLinear | None:
    """Return the layer as a quantized one; None where it is none."""
    return layer if isinstance(layer, QuantizedLinear) else None


def quantized_layers(model: nn.Module) -> dict[str, QuantizedMatrix]:
    """Return the layers of a model that are quantized, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, QuantizedMatrix)}


def stored_modules(model: nn.Module) -> dict[str, Stored]:
    """Return all that is quantized in a model, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Stored)}


def plain_state(
    model: PreTrainedModel, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, Tensor]]:
    """Yield what `state_dict` holds, with the weights of what is quantized, decoded to the dtype of the model, in the place of
    what stores them; those whose names are `wanted`, one after another.
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

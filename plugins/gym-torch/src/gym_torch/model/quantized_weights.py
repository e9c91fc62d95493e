"""Linear layers whose weight is held in a few bits: what a quantizer that works at load time plugs into.

A quantizer of the moment `load` builds a `WeightCodec`, which turns a matrix into what is stored and back. The layer is the
same for all of them: it is an `nn.Linear`, or GPT-2's `Conv1D`, so adapters go beside it as beside any, and its weight, which no
optimizer sees, is computed where it is used. The backward pass computes it again, so nothing of the size of a weight is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gym_core import PluginError
from gym_optim.promises import named

KEY = "model.quantization"
STORED = "stored_"  #: begins the names of the buffers of a layer that hold its weight


class WeightCodec(ABC):
    """What `build()` of a quantizer of the moment `load` returns: how a matrix is stored, and what it is computed with.

    A tensor that is stored keeps its dtype whatever the model is moved or cast to.
    """

    def check(self, shape: PretrainedConfig, device: torch.device) -> None:  # noqa: B027
        """Raise GymError where it cannot work on a model of this configuration or on this device; nothing is loaded yet."""

    @abstractmethod
    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        """Return what is stored of a matrix `[out, in]` of any shape, by name, contiguous, on the device of the matrix."""

    @abstractmethod
    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the matrix `[out, in]` that stored tensors stand for, floating, on their device; the same every time."""

    def linear(self, rows: Tensor, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return `rows @ weight.T`, `[..., out]`, differentiable by the rows; under autocast in its dtype.

        Default: the weight is decoded, and decoded again in the backward pass.
        """
        return decoded_linear(rows, lambda: decoded(self, stored, shape))


class Stored(nn.Module, ABC):
    """Base of layers that hold weights in a few bits, in buffers; no cast changes a bit of those."""

    @abstractmethod
    def plain_weights(self) -> dict[str, Callable[[], Tensor]]:
        """Return what computes each weight, by the name that a layer that is not quantized has for it."""

    @abstractmethod
    def plain(self, dtype: torch.dtype) -> nn.Module:
        """Return a layer that is not quantized and holds the weights it computes with."""

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


class _Decoded(torch.autograd.Function):
    """Rows times a weight that is there for the product alone."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Callable[[], Tensor], dtype: torch.dtype) -> Tensor:
        ctx.weight, ctx.dtype, ctx.rows = weight, dtype, rows.dtype
        return nn.functional.linear(rows.to(dtype), weight().to(dtype))

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        return (by_output.to(ctx.dtype) @ ctx.weight().to(ctx.dtype)).to(ctx.rows), None, None


def decoded_linear(rows: Tensor, weight: Callable[[], Tensor]) -> Tensor:
    """Return `rows @ weight().T`, `[..., out]`, with a weight `[out, in]` that the backward pass asks for again."""
    kind = rows.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else rows.dtype
    with torch.autocast(kind, enabled=False):
        found: Tensor = _Decoded.apply(rows, weight, dtype)  # type: ignore[no-untyped-call]
    return found


def encoded(codec: WeightCodec, weight: Tensor) -> dict[str, Tensor]:
    """Return what is stored of a matrix. Raises PluginError where a codec returns something else than tensors by name."""
    stored = codec.encode(weight)
    held = isinstance(stored, dict) and all(isinstance(name, str) for name in stored)
    if held and stored and all(isinstance(tensor, Tensor) for tensor in stored.values()):
        return stored
    raise PluginError(
        f"{named(codec)}.encode returned {stored!r:.60} for a matrix {list(weight.shape)}",
        key=KEY,
        fix="return the tensors to store by name, at least one: `{'codes': codes}`",
    )


def decoded(codec: WeightCodec, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
    """Return the matrix that is stored; of tensors without data one without data.

    Raises PluginError where a codec returns something else than a matrix of that shape.
    """
    first = next(iter(stored.values()))
    if first.is_meta or isinstance(first, FakeTensor):
        return first.new_empty(shape, dtype=torch.float32)
    with torch.no_grad():
        found = codec.decode(stored, shape)
    if isinstance(found, Tensor) and found.shape == shape and found.is_floating_point():
        return found
    what = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
    raise PluginError(
        f"{named(codec)}.decode returned {what} for a matrix {list(shape)}",
        key=KEY,
        fix="return a floating tensor of the shape that it is given",
    )


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

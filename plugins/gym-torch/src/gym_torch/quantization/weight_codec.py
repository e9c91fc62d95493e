"""What a quantizer that works at load time plugs into: how a matrix is stored, and what it is computed with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from transformers import PretrainedConfig

from gym_core import PluginError
from gym_optim.promises import named

KEY = "model.quantization"
CHANGE = "change"  #: name of what a `ChangedCodec` stores beside


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


class ChangedCodec(WeightCodec):
    """What another codec stores, and beside it a change of the matrix, as it is."""

    def __init__(self, codec: WeightCodec) -> None:
        """Take the other one."""
        self.codec = codec

    @classmethod
    def of(
        cls, codec: WeightCodec, stored: Mapping[str, Tensor], change: Tensor
    ) -> tuple[WeightCodec, dict[str, Tensor]]:
        """Return what stores a change too, and what it stores."""
        before = stored.get(CHANGE)
        return (cls(codec) if before is None else codec), {
            **stored,
            CHANGE: change if before is None else before + change,
        }

    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        """Return what the other stores of a matrix, which has not changed."""
        return self.codec.encode(weight) | {CHANGE: torch.zeros_like(weight)}

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the sum."""
        found = self.codec.decode(_without_change(stored), shape)
        return found + stored[CHANGE].to(found.dtype)

    def linear(self, rows: Tensor, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the sum of both products."""
        found = self.codec.linear(rows, _without_change(stored), shape)
        return found + nn.functional.linear(rows.to(found.dtype), stored[CHANGE].to(found.dtype))


def _without_change(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in stored.items() if name != CHANGE}


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

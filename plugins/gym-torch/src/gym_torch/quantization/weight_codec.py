"""Codecs of load-time quantizers: how a matrix is encoded, decoded and multiplied."""

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
    """Encodes and decodes matrices: what `build()` of a quantizer of the moment `load` returns.

    Stored tensors keep their dtype when the model is moved or cast.
    """

    def check(self, shape: PretrainedConfig, device: torch.device) -> None:  # noqa: B027
        """Raise GymError where it does not support a model of this configuration or this device; nothing is loaded yet."""

    @abstractmethod
    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the stored tensors of a matrix `[out, in]` of any shape, by name, contiguous, on its device."""

    @abstractmethod
    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the decoded matrix `[out, in]`, floating point, on the device of the tensors; deterministic."""

    def linear(self, rows: Tensor, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return `rows @ weight.T`, `[..., out]`, differentiable by the rows; under autocast in its dtype.

        Default: the weight is decoded, and decoded again in the backward pass.
        """
        return decoded_linear(rows, lambda: decoded(self, stored, shape))


class ChangedCodec(WeightCodec):
    """Stores what another codec stores, and a change of the matrix that is not encoded."""

    def __init__(self, codec: WeightCodec) -> None:
        """Wrap the other codec."""
        self.codec = codec

    @classmethod
    def of(
        cls, codec: WeightCodec, stored: Mapping[str, Tensor], change: Tensor
    ) -> tuple[WeightCodec, dict[str, Tensor]]:
        """Return a codec for a matrix with a change, and its stored tensors."""
        before = stored.get(CHANGE)
        return (cls(codec) if before is None else codec), {
            **stored,
            CHANGE: change if before is None else before + change,
        }

    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        """Return what the other codec stores of a matrix without a change."""
        return self.codec.encode(weight) | {CHANGE: torch.zeros_like(weight)}

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the decoded matrix plus the change."""
        found = self.codec.decode(_without_change(stored), shape)
        return found + stored[CHANGE].to(found.dtype)

    def linear(self, rows: Tensor, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the sum of both products."""
        found = self.codec.linear(rows, _without_change(stored), shape)
        return found + nn.functional.linear(rows.to(found.dtype), stored[CHANGE].to(found.dtype))


def _without_change(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in stored.items() if name != CHANGE}


class _Decoded(torch.autograd.Function):
    """Rows times a weight that is decoded for the product only."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Callable[[], Tensor], dtype: torch.dtype) -> Tensor:
        ctx.weight, ctx.dtype, ctx.rows = weight, dtype, rows.dtype
        return nn.functional.linear(rows.to(dtype), weight().to(dtype))

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        return (by_output.to(ctx.dtype) @ ctx.weight().to(ctx.dtype)).to(ctx.rows), None, None


def decoded_linear(rows: Tensor, weight: Callable[[], Tensor]) -> Tensor:
    """Return `rows @ weight().T`, `[..., out]`, for a weight `[out, in]` that the backward pass computes again."""
    kind = rows.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else rows.dtype
    with torch.autocast(kind, enabled=False):
        found: Tensor = _Decoded.apply(rows, weight, dtype)  # type: ignore[no-untyped-call]
    return found


def encoded(codec: WeightCodec, weight: Tensor) -> dict[str, Tensor]:
    """Return the stored tensors of a matrix. Raises PluginError where a codec does not return tensors by name."""
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
    """Return the decoded matrix; for tensors without data a matrix without data.

    Raises PluginError where a codec does not return a matrix of that shape.
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

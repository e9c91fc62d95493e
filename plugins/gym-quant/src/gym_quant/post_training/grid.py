"""The numbers that a group of weights can hold: scales, zero points, codes, and the weights that codes stand for.

As compressed-tensors computes them (`compressed_tensors.quantization`), so that a file means here what it means there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from compressed_tensors.compressors.pack_quantized import pack_to_int32, unpack_from_int32
from torch import Tensor

from gym_quant.config.stored_layout import Scheme

FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max


@dataclass(frozen=True)
class Codes:
    """A weight `[rows, columns]` as it is stored."""

    scheme: Scheme
    codes: Tensor  #: int8 [rows, columns] from -2^(bits-1) up, or E4M3
    scale: Tensor  #: [rows, groups], in the number format of the model
    zero: Tensor | None = None  #: int8 [rows, groups]; None: 0

    def weight(self) -> Tensor:
        """Return what the codes stand for, `[rows, columns]` in the number format of the scales."""
        rows, columns = self.codes.shape
        grouped = self.codes.view(rows, self.scale.shape[1], -1)
        return Grid(self.scheme, self.scale, self.zero).numbers(grouped, slice(None)).view(rows, columns)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return what the files of compressed-tensors hold of it; `name` is that of the weight."""
        if self.scheme.floating:
            return {name: self.codes, f"{name}_scale": self.scale}
        made = {
            f"{name}_packed": pack_to_int32(self.codes, self.scheme.bits),
            f"{name}_scale": self.scale,
            f"{name}_shape": torch.tensor(self.codes.shape),
        }
        if self.zero is not None:
            packed = pack_to_int32(self.zero, self.scheme.bits, packed_dim=0)
            made[f"{name}_zero_point"] = packed.clone(memory_format=torch.contiguous_format)  # it comes transposed
        return made

    @classmethod
    def of(cls, name: str, tensors: dict[str, Tensor], scheme: Scheme) -> Codes:
        """Return what `tensors` gave."""
        scale = tensors[f"{name}_scale"]
        if scheme.floating:
            return cls(scheme, tensors[name], scale)
        shape = torch.Size(tensors[f"{name}_shape"].tolist())
        codes = unpack_from_int32(tensors[f"{name}_packed"], scheme.bits, shape)
        if scheme.symmetric:
            return cls(scheme, codes, scale)
        zeros = torch.Size([shape[0], scale.shape[1]])
        return cls(
            scheme, codes, scale, unpack_from_int32(tensors[f"{name}_zero_point"], scheme.bits, zeros, packed_dim=0)
        )


@dataclass(frozen=True)
class Grid:
    """What each group of a weight can hold."""

    scheme: Scheme
    scale: Tensor  #: [rows, groups], in the number format of the model
    zero: Tensor | None = None  #: int8 [rows, groups]

    @classmethod
    def of(cls, weight: Tensor, scheme: Scheme, dtype: torch.dtype, most: Tensor | None = None) -> Grid:
        """Return the smallest grid that holds all numbers of each group of a weight `[rows, columns]`.

        `most` `[rows, groups]` are magnitudes beyond which numbers are clipped.
        """
        grouped = weight.float().view(len(weight), scheme.groups(weight.shape[1]), -1)
        low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
        if most is not None:
            low, high = low.maximum(-most), high.minimum(most)
        if scheme.floating:
            scale = high.maximum(-low) / LARGEST
        elif scheme.symmetric:
            scale = 2 * high.maximum(-low) / (2**scheme.bits - 1)
        else:
            scale = (high - low) / (2**scheme.bits - 1)
        scale = scale.to(dtype)
        scale = torch.where(scale > 0, scale, 1.0)
        if scheme.symmetric or scheme.floating:
            return cls(scheme, scale)
        first = -(2 ** (scheme.bits - 1))
        zero = (first - low / scale.float()).round().clamp(first, -first - 1)
        return cls(scheme, scale, zero.to(torch.int8))

    def codes(self, weight: Tensor) -> Codes:
        """Return the nearest codes of a weight `[rows, columns]`."""
        grouped = weight.float().view(len(weight), self.scale.shape[1], -1)
        found = self.nearest(grouped, slice(None)).view_as(weight)
        return Codes(self.scheme, found.to(FLOAT8 if self.scheme.floating else torch.int8), self.scale, self.zero)

    def nearest(self, weight: Tensor, groups: slice | int) -> Tensor:
        """Return the nearest codes of numbers `[rows, groups, n]` as fp32; with the number of a group, of `[rows, n]`."""
        steps = weight / self.scale[:, groups, None].float()
        if self.scheme.floating:
            return steps.clamp(-LARGEST, LARGEST).to(FLOAT8).float()
        if self.zero is not None:
            steps = steps + self.zero[:, groups, None]
        first = -(2 ** (self.scheme.bits - 1))
        return steps.round().clamp(first, -first - 1)

    def numbers(self, codes: Tensor, groups: slice | int) -> Tensor:
        """Return what codes `[rows, groups, n]`, or of one group `[rows, n]`, stand for, in the number format of the scales."""
        found = codes.to(self.scale.dtype)
        if self.zero is not None:
            found = found - self.zero[:, groups, None].to(self.scale.dtype)
        return found * self.scale[:, groups, None]


def rounded_tokens(states: Tensor) -> Tensor:
    """Return states `[..., in]` rounded to E4M3, with a scale for each token: what runtimes do to the inputs of a layer."""
    scale = states.abs().amax(-1, keepdim=True) / LARGEST
    scale = torch.where(scale > 0, scale, 1.0)
    return (states / scale).clamp(-LARGEST, LARGEST).to(FLOAT8).to(states.dtype) * scale

"""BitDelta."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import PositiveInt, model_validator

from gym_bitdelta.config.base import DeltaOptions
from gym_bitdelta.delta.header import Granularity
from gym_bitdelta.fit.quant_scheme import Coding


class BitDelta(DeltaOptions):
    """What a fine-tune changed, as signs and scales: `W = W0 + sum_j a_j S_j`, a bit a weight for each plane j.

        S = sign(W - W0)                                    with one bit, and a = mean |W - W0| of what shares a scale
        S_1..S_k, a_1 >= ... >= a_k                         with k bits, fitted together: nearest level, least-squares scales

    Then the scales alone are trained, so that the model answers as the fine-tune does.
    """

    bits: Literal[1, 2, 3, 4] = 1
    """Planes of signs. On normal numbers they leave 36, 12, 3.7 and 1.2 % of the squared change."""
    scale_mode: Granularity | Literal["auto"] = "auto"
    """What has scales of its own: the matrix (`tensor`, as published), each output (`row`), each input (`col`), groups of inputs
    of an output (`group`), or an output times an input (`rank1`). `auto` takes what leaves the least error, of all but groups."""
    group_size: PositiveInt | None = None
    """Inputs of a group; sets `scale_mode: group`, for which it is 128 by default."""

    def coding(self, name: str) -> Coding:
        """Return how the matrix of this name inside a layer is coded."""
        return Coding("signs", self.bits, self.scale_mode, self.group_size, sparse=self.ternary_above)

    def error_bound(self) -> float:
        """Return the largest relative Frobenius error on a change of normal numbers."""
        return {1: 0.605, 2: 0.345, 3: 0.195, 4: 0.11}[self.bits]

    def size_varies(self) -> bool:
        """Return whether what the change holds decides its size."""
        return self.scale_mode == "auto" or (self.bits == 1 and self.ternary_above < 1)

    @model_validator(mode="before")
    @classmethod
    def _grouped(cls, said: object) -> object:
        if not isinstance(said, dict):
            return said
        if said.get("group_size") is not None and "scale_mode" not in said:
            return {**said, "scale_mode": "group"}
        if said.get("scale_mode") == "group" and said.get("group_size") is None:
            return {**said, "group_size": 128}
        return said

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.group_size is not None and self.scale_mode != "group":
            raise ValueError(f"group_size is of `scale_mode: group`, and it is {self.scale_mode}")
        return self

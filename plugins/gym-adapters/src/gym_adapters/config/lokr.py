"""LoKr: an update that is a Kronecker product."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt, field_validator

from gym_adapters.config.base import PeftOptions


class LoKr(PeftOptions):
    """Trains an update that is a Kronecker product of a small matrix and a low-rank one.

        y = W x + scaling (C (x) D) x             scaling = alpha / rank, (x): the Kronecker product
        out = l k,  in = m n                      l, m: `decompose_factor`, or the next divisor below it and the root
        D = B A                                   or one matrix, where the rank is at least half of the larger of k and n

    W `[out, in]` stays as it is; C `[l, m]`, B `[k, rank]` and A `[rank, n]` train. C begins as zeros, B and A uniform, within
    1 / sqrt(rank) and 1 / sqrt(n). With `decompose_both`, C is a product of this rank too, where the larger of l and m is more
    than twice the rank. The matrix that is added is built whole in every pass.

    Trains: `l m + rank (k + n)` numbers for a layer `[out, in]`, or `l m + k n`: about `sqrt(out in)`.

    Code: peft's, which is right. Its layers draw a random number in every training step for a dropout that is off, past which
    nothing can be planned or compiled; here they do not.

    Differs: peft begins with C as zeros, the code of LyCORIS with the other one; both begin unchanged.

    On the disk: the matrices by peft's names, which peft loads. Merges; left out, it leaves the base, so the base is its own
    reference.

    Not with: GPT-2's layers and embeddings; quantized weights, where it is merged.
    """

    target: ClassVar[str] = "gym_adapters.tuners.lokr:LoKrAdapter"

    rank: PositiveInt = 8
    """Rank of the second matrix, where it is large enough for that; a small one is trained whole."""
    alpha: PositiveInt | None = None
    """The update is scaled by alpha / rank; without it alpha is the rank."""
    decompose_factor: int = -1
    """Largest size of a side of the first matrix; -1 divides a side as near to its square root as it can be divided."""
    decompose_both: bool = False
    """Whether the first matrix is of this rank too, where it is large enough."""

    @field_validator("decompose_factor")
    @classmethod
    def _a_size(cls, factor: int) -> int:
        if factor < 1 and factor != -1:
            raise ValueError("a size is at least 1; -1 lets the shape decide")
        return factor

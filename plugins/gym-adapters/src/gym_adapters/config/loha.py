"""LoHa: an update that is the element-wise product of two low-rank ones."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from gym_adapters.config.base import PeftOptions


class LoHa(PeftOptions):
    """Trains an update that is the element-wise product of two low-rank ones, so that its rank is up to the square of theirs.

        y = W x + scaling ((B1 A1) * (B2 A2)) x   scaling = alpha / rank, * element by element

    W `[out, in]` stays as it is; B1 and B2 `[out, rank]`, A1 and A2 `[rank, in]` train. A2 begins as zeros, the others uniform,
    within 1 / sqrt(rank) for B1 and B2 and 1 / sqrt(in) for A1. The matrix that is added is built whole in every pass.

    Trains: `2 rank (out + in)` numbers for a layer `[out, in]`.

    Code: peft's, which is right. Its layers draw a random number in every training step for a dropout that is off, past which
    nothing can be planned or compiled; here they do not.

    Differs: the paper makes a whole weight of such a product, here it is the update of one; alpha / rank is LyCORIS's and
    peft's, and is 1 by default.

    On the disk: the four matrices by peft's names, which peft loads. Merges; left out, it leaves the base, so the base is its
    own reference.

    Not with: GPT-2's layers and embeddings; quantized weights, where it is merged.
    """

    target: ClassVar[str] = "gym_adapters.tuners.loha:LoHaAdapter"

    rank: PositiveInt = 8
    """Rank of each of the two factors."""
    alpha: PositiveInt | None = None
    """The update is scaled by alpha / rank; without it alpha is the rank."""

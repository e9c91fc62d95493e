"""OFT: block-diagonal rotations of the inputs of a layer."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt, model_validator

from gym_adapters.config.base import PeftOptions


class OFT(PeftOptions):
    """Trains a rotation of the inputs of each linear layer, block by block (OFTv2: the inputs are turned, not the weights).

        y = W R^T x                               R: block-diagonal, a block for each `block_size` inputs
        block = 1 + 2 Q + 2 Q^2 + 2 Q^3 + Q^4     five terms of (1 + Q)(1 - Q)^-1 (equation 6)
        block = (1 - Q)(1 + Q)^-1                 with `exact`

    W `[out, in]` and the bias stay as they are. Each Q `[block, block]` is skew-symmetric; the numbers above its diagonal train
    and begin as zeros, so that R is 1. The five terms are orthogonal up to `2 |Q|^4`: below 1e-3 while no block turns far,
    which is measured at every save, and warned of. `exact` solves a system instead.

    Trains: `in (block - 1) / 2` numbers for a layer `[out, in]`.

    Code: peft's, which is right in what it computes.

    Differs: peft's dropout of blocks is never applied, so there is no such option; a block size that does not fit, which it
    replaces unsaid, is refused. Inputs with a dimension for heads, as in DeepSeek-V3, which it takes for images, are rotated.

    On the disk: the numbers by peft's names, and which kind of rotation they are for, since the two turn in opposite
    directions; peft loads both. Merges, as W R^T; left out, it leaves the base, so the base is its own reference.

    Not with: layers whose inputs the blocks do not divide; GPT-2's layers and embeddings; quantized weights, where it is
    merged.
    """

    target: ClassVar[str] = "gym_adapters.tuners.oft:OFTAdapter"

    block_size: Annotated[PositiveInt | None, Field(examples=[8])] = None
    """Block size: inputs that are rotated together, 32 without it and `rank`; must divide the inputs of every adapted layer."""
    rank: PositiveInt | None = None
    """OFT rank: number of blocks of each layer, in place of their size."""
    exact: bool = False
    """Whether rotations are exact, by solving a system, rather than five terms of a series: right where they become large."""

    @property
    def effective_block_size(self) -> int | None:
        """Return the size of the blocks; None where their number is given."""
        return None if self.rank else self.block_size or 32

    @model_validator(mode="after")
    def _one_of_both(self) -> OFT:
        if self.block_size and self.rank:
            raise ValueError("set block_size or rank, not both")
        return self

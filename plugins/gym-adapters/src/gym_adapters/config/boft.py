"""BOFT: a rotation of the inputs of a layer as a product of sparse ones."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from gym_adapters.config.base import TargetOptions


class BOFT(TargetOptions):
    """Trains a rotation of the inputs of each linear layer as a product of sparse ones, and a scale of each output.

        y = s * (W M^T x) + bias                  M = F_m ... F_2 F_1, m = `n_butterfly_factor`
        F_i = P_i D_i P_i^T                       D_i: block-diagonal, of blocks (1 - S)(1 + S)^-1
        S = (K - K^T) / 2

    W `[out, in]` and the bias stay as they are. s `[out]` begins as ones, each K `[block, block]` as zeros; both train. P_i
    brings chunks of half a block together that lie 2^(i-1) chunks apart (section 4), so an output sees `block_size` times 2^(m-1)
    inputs. Rotations are solved for in fp32, so they are exact.

    Trains: `factors in block + out` numbers for a layer `[out, in]`; of each K only the skew part counts, as in peft.

    Code: ours: without its CUDA extension peft trains one factor, whatever was asked for, and it multiplies matrices of the
    size of the layer.

    Differs: from peft in nothing that is computed. There is no dropout of factors, and no `modules_to_save`.

    On the disk: K and s by peft's names. peft loads one factor anywhere, and more where its CUDA extension is built. Merges, as
    s times the rows of W M^T; left out, it leaves the base, so the base is its own reference.

    Not with: layers whose inputs are no multiple of `block_size` times 2^(m-1); GPT-2's layers and embeddings; quantized weights,
    where it is merged.
    """

    target: ClassVar[str] = "gym_adapters.tuners.boft:BOFTAdapter"

    block_size: Annotated[PositiveInt, Field(multiple_of=2)] = 8
    """Block size: inputs that one factor rotates together."""
    n_butterfly_factor: PositiveInt = 2
    """Number of butterfly factors; block_size * 2^(n_butterfly_factor - 1) must divide the inputs of every adapted layer."""

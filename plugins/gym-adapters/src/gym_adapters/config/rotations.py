"""Rotations of what goes into a linear layer: they keep the angles between its neurons."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt, model_validator

from gym_adapters.config.tuner import Names, Tuner
from gym_core import Adapter, Flat


class OFT(Tuner):
    """Trains a rotation of the inputs of each linear layer, block by block (OFTv2: the inputs are turned, not the weights).

        y = W R^T x                               R: block-diagonal, a block for each `block` inputs
        block = 1 + 2 Q + 2 Q^2 + 2 Q^3 + Q^4     five terms of (1 + Q)(1 - Q)^-1 (equation 6)
        block = (1 - Q)(1 + Q)^-1                 with `exact`

    W `[out, in]` and the bias stay as they are. Each Q `[block, block]` is skew-symmetric; the numbers above its diagonal train
    and begin as zeros, so that R is 1. The five terms are orthogonal up to `2 |Q|^4`: below 1e-3 while no block turns far,
    which is measured at every save, and warned of. `exact` solves a system instead.

    Trains: `in (block - 1) / 2` numbers for a layer `[out, in]`.

    Code: peft's, which is right in what it computes.

    Differs: peft's dropout of blocks is never applied, so there is no such option; a block size that does not fit, which it
    replaces unsaid, is refused.

    On the disk: the numbers by peft's names, and which kind of rotation they are for, since the two turn in opposite
    directions; peft loads both. Merges, as W R^T; left out, it leaves the base, so the base is its own reference.

    Not with: layers whose inputs the blocks do not divide; GPT-2's layers and embeddings; quantized weights, where it is
    merged.

    Proof: trained rotations are orthogonal to 1e-3, and keep the angles between rows of W
    (`test_trained_rotations_are_orthogonal_and_keep_angles`); far ones are warned of, and exact ones are not
    (`test_rotations_that_became_large_are_reported_unless_exact`); the output begins as the base's, 1e-5
    (`test_it_begins_unchanged_and_only_what_it_declares_trains`); peft computes the same from the files
    (`test_plain_peft_loads_it`); blocks that do not fit are refused (`test_blocks_that_do_not_fit_are_refused`).
    """

    target: ClassVar[str] = "gym_adapters.rotations:Oft"

    block: Annotated[
        PositiveInt | None, Field(examples=[8]), Flat("oft_block_size", convert=lambda size: size or None)
    ] = None
    """Inputs that are rotated together, 32 by default; must divide the inputs of every adapted layer."""
    blocks: Annotated[PositiveInt | None, Flat("oft_rank", convert=lambda count: count or None)] = None
    """Number of blocks of each layer, in place of their size."""
    exact: bool = False
    """Whether rotations are exact, by solving a system, rather than five terms of a series: right where they become large."""
    modules: Annotated[Names, Flat("oft_target"), Flat("lora_target")] = "all"
    """Linear layers to adapt, or what they are in, such as `q_proj,mlp`; `all` is every one but the language-model head."""

    @model_validator(mode="after")
    def _one_of_both(self) -> OFT:
        if self.block and self.blocks:
            raise ValueError("set block or blocks, not both")
        return self


class BOFT(Adapter):
    """Trains a rotation of the inputs of each linear layer as a product of sparse ones, and a scale of each output.

        y = s * (W M^T x) + bias                  M = F_m ... F_2 F_1, m = `factors`
        F_i = P_i D_i P_i^T                       D_i: block-diagonal, of blocks (1 - S)(1 + S)^-1
        S = (K - K^T) / 2

    W `[out, in]` and the bias stay as they are. s `[out]` begins as ones, each K `[block, block]` as zeros; both train. P_i
    brings chunks of half a block together that lie 2^(i-1) chunks apart (section 4), so an output sees `block` times 2^(m-1)
    inputs. Rotations are solved for in fp32, so they are exact.

    Trains: `factors in block + out` numbers for a layer `[out, in]`; of each K only the skew part counts, as in peft.

    Code: ours: without its CUDA extension peft trains one factor, whatever was asked for, and it multiplies matrices of the
    size of the layer.

    Differs: from peft in nothing that is computed. There is no dropout of factors, and no `extra`.

    On the disk: K and s by peft's names. peft loads one factor anywhere, and more where its CUDA extension is built. Merges, as
    s times the rows of W M^T; left out, it leaves the base, so the base is its own reference.

    Not with: layers whose inputs are no multiple of `block` times 2^(m-1); GPT-2's layers and embeddings; quantized weights,
    where it is merged.

    Proof: it is the product of its factors, built as matrices, and orthogonal
    (`test_a_butterfly_is_the_product_of_its_factors`); each factor is peft's (`test_it_is_the_butterfly_of_peft`); the output
    begins as the base's (`test_it_begins_unchanged_and_only_what_it_declares_trains`); merged = unmerged
    (`test_merged_computes_the_same_and_is_plain`); what does not fit is refused (`test_blocks_that_do_not_fit_are_refused`).
    """

    target: ClassVar[str] = "gym_adapters.butterfly:Boft"

    block: Annotated[PositiveInt, Field(multiple_of=2)] = 8
    """Inputs that one factor rotates together."""
    factors: PositiveInt = 2
    """Number of butterfly factors; block * 2^(factors - 1) must divide the inputs of every adapted layer."""
    modules: Names = "all"
    """Linear layers to adapt, or what they are in, such as `q_proj,mlp`; `all` is every one but the language-model head."""

    def uniform(self) -> bool:
        """No name singles out a layer by its number."""
        return not any(letter.isdigit() for name in self.modules for letter in name)

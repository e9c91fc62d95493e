"""VeRA: two vectors for each layer, which scale random matrices that all layers share."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from gym_adapters.config.base import PeftOptions


class VeRA(PeftOptions):
    """Trains two vectors for each linear layer, which scale random matrices that all layers share.

        y = W x + diag(b) B diag(d) A x           equation 2

    W `[out, in]` stays as it is, and so do A and B, drawn once from `projection_prng_key` for all layers: A `[rank, most in]`
    uniform within sqrt(6 / most in), B `[most out, rank]` within sqrt(6 / rank); a layer takes the first rows and columns that
    it needs. b `[out]` begins as zeros, d `[rank]` as `d_initial`; both train.

    Trains: `out + rank` numbers for a layer `[out, in]`.

    Code: peft's, which is right.

    Differs: from peft in nothing that is computed. It has the option not to save A and B, and to draw them anew, which differs
    between machines and between precisions of W; here they are always saved, and taken from the folder.

    On the disk: b and d by peft's names, with A and B, so that peft draws nothing either. Merges; left out, it leaves the base,
    so the base is its own reference.

    Not with: a folder without A and B; GPT-2's layers and embeddings; quantized weights, where it is merged.
    """

    target: ClassVar[str] = "gym_adapters.tuners.vera:VeraAdapter"

    rank: PositiveInt = 256
    """Rank of the random matrices; each layer trains this many numbers, and one for each of its outputs."""
    d_initial: PositiveFloat = 0.1
    """Initial d: first value of the vector between the two matrices; the one after them is zero at first."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a layer's inputs that the update does not see in a training step."""
    projection_prng_key: Annotated[int, Field(ge=0)] = 0
    """Projection PRNG key: seed of the random matrices, which are no part of what trains: another one is another adapter."""

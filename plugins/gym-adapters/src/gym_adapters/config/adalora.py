"""AdaLoRA: LoRA whose ranks go where they matter."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, PositiveInt, model_validator

from gym_adapters.config.base import LowRankOptions

Decay = Annotated[float, Field(gt=0, lt=1)]
Steps = Annotated[float, Field(ge=0)]  #: a number of steps, or below 1 a share of all


class AdaLoRA(LowRankOptions):
    """LoRA with orthogonal directions, of which the least important ones are let go while it trains.

        y = W x + scaling B diag(E) A x           scaling = alpha / (rank + 1e-5)
        loss + orth_reg_weight * mean of |A A^T - 1| and |B^T B - 1| over all layers
        s(w) = I(w) U(w)                          I: running mean of |w g|, g the gradient of w; U: of ||w g| - I|
        S_i = s(E_i) + mean s(A_i) + mean s(B_i)  how important row i of A, with column i of B, is
        b(t) = target_rank + (rank - target_rank) (1 - (t - tinit) / (T - tfinal - tinit))^3

    W `[out, in]` stays; A `[rank, in]` and B `[out, rank]` begin normal, of deviation 0.02, and E `[rank]` as zeros. After step
    `tinit` of T, and every `delta_t` steps, E_i of the least important directions of all layers together becomes zero, so that
    b(t) a layer are left on average; in the last `tfinal` steps the same ones stay. In the paper B, E, A are P, Lambda, Q.

    Trains: `rank (out + in + 1)` numbers for a layer `[out, in]`; E of what is gone stays zero.

    Code: peft's layers and allocation of ranks; penalty, state and files ours: peft adds the penalty only to a loss that its
    own wrapper computes, and drops what a resumed run needs.

    Differs: the paper adds up squared norms; its code and peft take the mean of the norms themselves, as here.

    On the disk: what is left, as peft loads it, and in adalora.safetensors all there is, from which Gym goes on. Merges; left
    out, it leaves the base to the bit, so the base is its own reference.

    Not with: `fsdp`, for it weighs whole gradients; optimizers that leave none, as in the backward pass; other adapters beside
    it; a run too short for `tinit` and `tfinal`; GPT-2's layers; quantized weights, where it is merged.
    """

    target: ClassVar[str] = "gym_adapters.tuners.adalora:AdaLoraAdapter"
    needs_gradients: ClassVar[bool] = True
    needs_total_steps: ClassVar[bool] = True

    rank: PositiveInt = 12
    """Initial rank of every layer."""
    target_rank: PositiveInt = 8
    """Target rank: the mean rank in the end."""
    tinit: Steps = 0.1
    """Initial warmup: steps before the first rank goes: a number, or below 1 a share of all."""
    tfinal: Steps = 0.3
    """Final fine-tuning: steps after the last one went, counted alike."""
    delta_t: PositiveInt = 1
    """Allocation interval: steps between two times that ranks go."""
    beta1: Decay = 0.85
    """Decay of the running mean of how sensitive the loss is to a weight."""
    beta2: Decay = 0.85
    """Decay of the running mean of how much that varies."""
    orth_reg_weight: Annotated[float, Field(ge=0)] = 0.5
    """Orthogonal regularization: weight of the penalty on directions that are not orthogonal."""

    @model_validator(mode="after")
    def _fewer(self) -> Self:
        if self.target_rank >= self.rank:
            raise ValueError(f"target_rank must be below the rank of {self.rank}")
        return self

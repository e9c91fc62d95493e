"""The options of Q-GaLore."""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from gym_optim.config.base import Shape, quantized_bytes
from gym_optim.config.galore import ProjectedOptions


class QGaLore(ProjectedOptions):
    """GaLore with a 4-bit basis, 8-bit moments, and rarer projections where they hardly change.

        when due: P' = r leading left singular vectors of G, C = P'^T P, M = C M, V = C^2 V, w = C^2 w, P = round4(P')
            due again in T steps; T doubles when the mean of the last `queue_size` |cos(P'_1, P_1)| is `cos_threshold` or more
        R = P^T G
        M = beta1 decode(M8) + (1 - beta1) R,    M8 = encode(M)
        V = beta2 decode(V8) + (1 - beta2) R^2,  V8 = encode(V),  w = beta2 w + (1 - beta2)
        W = (1 - eta lambda) W - eta scale P (M / (1 - beta1^t)) / (sqrt(V / w) + epsilon)

    W and G are m x n with m <= n, else all is transposed, or as `proj_type` says; P is m x r, M and V are r x n, w has a
    number for each row of V, as in GaLore. T begins at `update_proj_gap` and is each matrix's own, as each expert of a stack
    is one. round4 takes 15 even values between plus and minus the largest of 256 numbers, encode is that of `adamw_8bit`.
    Embeddings, head, norms, biases, single rows or columns and what `target_modules` does not name get AdamW in fp32.

    State: 2.03 r max + 0.52 r min + 4 r bytes for a matrix of sides min and max: codes, a scale for 256, w; 8 a number
    elsewhere.

    Code: ours, from the paper: the reference rests on GaLore's, with what is wrong there.

    Differs: weights stay fp32, as everything that trains does in Gym. int8 weights with stochastic rounding would have to be
    weights of the model itself (forward pass, checkpoints, export); rounding fp32 parameters to that grid would bring its
    noise and none of its memory. Moments follow the basis; cosines count without sign, and are forgotten when T doubles.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.
    """

    target: ClassVar[str] = "gym_optim.optimizers.q_galore:QGaLore"

    cos_threshold: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Mean cosine between the first vectors of successive bases from which on the interval doubles."""
    queue_size: PositiveInt = 5
    """Pairs of bases whose cosines are averaged."""

    def projected(self, shape: Shape) -> int:
        """Return the bytes of the codes and scales of basis and moments, and of a mass for each row."""
        rank, dim, other = self.projection(shape)
        return prod(shape[:-2]) * (quantized_bytes(rank * dim, bits=4) + 2 * quantized_bytes(rank * other) + 4 * rank)

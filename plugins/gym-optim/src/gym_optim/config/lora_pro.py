"""The options of LoRA-Pro."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from pydantic import PositiveFloat

from gym_optim.config.base import AdamOptions, AfterBackward, Groups, WholeParameters


class LoRAPro(AdamOptions, AfterBackward, WholeParameters):
    """A and B of each LoRA pair move so that their product moves as the full matrix would; its moments are full size.

        K = (B^T B + delta I)^-1,  H = (A A^T + delta I)^-1
        near(a, b, X) = (K a / s^2 + X A,  (b - B K B^T b) H / s^2 - B X)
        a, b = near(gradient of A, gradient of B, 0)
        F = s (B a + b A)
        M = beta1 M + (1 - beta1) F,  V = beta2 V + (1 - beta2) F^2
        N = (M / (1 - beta1^t)) / (sqrt(V / (1 - beta2^t)) + epsilon)
        a, b = near(s B^T N, s N A^T, X),  K^-1 X + X H^-1 = -K B^T N A^T / s
        A = (1 - eta lambda) A - eta a,  B = (1 - eta lambda) B - eta b

    The layer computes with W + s B A; A is r x n, B is m x r. F, m x n, is as near to the gradient of W as A and B can move;
    M, V and N are m x n too. X is r x r and keeps a and b closest to the gradients given (theorems 2.1 and 2.2, algorithm 2).
    What is not such a pair gets AdamW, the lengths of DoRA too, so that there it is V = W + s B A which moves so.

    State: 8 m n bytes for an adapted matrix m x n; 8 a number of everything else.

    Code: ours, from the paper: the reference is a single release without upkeep.

    Differs: s is taken from each layer, so rsLoRA and ranks of their own for some layers are right too.

    Not with: `distributed: fsdp`; a model without a pair of LoRA; AdaLoRA, whose pairs have a third factor; `expert_lora`,
    whose two matrices hold the factors of all experts, in another order each; parameters without names, or whose layer does
    not say what it multiplies B A by. All are refused by name. There is no `in_backward`.
    """

    target: ClassVar[str] = "gym_optim.optimizers.lora_pro:LoRAPro"
    general: ClassVar[bool] = False

    scaling: PositiveFloat | None = None
    """What the adapter multiplies B A by; by default as it says itself, such as alpha / rank."""
    delta: PositiveFloat = 1e-8
    """Added to the diagonals of the products of A and of B with themselves, which are singular at the start."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments of each matrix that a pair makes, and of two for every other parameter."""
        shapes = {name: shape for group in parameters for name, shape in group["params"]}
        pairs = {name: name.replace("lora_A", "lora_B") for name in shapes if "lora_A" in name.split(".")}
        paired = {*pairs, *pairs.values()}
        whole: Sequence[int] = [shapes[b][0] * shapes[a][1] for a, b in pairs.items()]
        return 8 * (sum(whole) + sum(prod(shape) for name, shape in shapes.items() if name not in paired))

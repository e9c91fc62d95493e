"""The options of paged 8-bit AdamW."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from pydantic import PositiveInt

from gym_optim.config.adamw_8bit import AdamW8bit
from gym_optim.config.base import Groups, quantized_bytes, total_bytes


class PagedAdamW8bit(AdamW8bit):
    """8-bit AdamW of bitsandbytes whose state leaves the GPU where its memory is short; needs CUDA.

        m = beta1 decode(m8) + (1 - beta1) G,    m8 = encode(m)
        v = beta2 decode(v8) + (1 - beta2) G^2,  v8 = encode(v)
        W = (1 - eta lambda) (W - eta (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon))

    encode divides each block of 256 numbers by its largest magnitude and takes the nearest of 256 values; decay comes after
    the step. Codes and scales lie in memory that CUDA moves between machine and GPU, page by page (the paper, section 3). All
    parameters of `min_8bit_size` numbers or more get this, embeddings and head too; smaller ones get AdamW with moments in
    fp32.

    State: 2 m n + 8 ceil(m n / 256) bytes for a matrix m x n, which is 2.03 a number; 8 a number of what keeps 32 bits.

    Code: that of bitsandbytes (`pip install 'gym-optim[paged]'`): paging is a service of CUDA.

    Differs: from `adamw_8bit` in that embeddings and head have 8 bits too, and in where decay stands.

    Not with: machines without CUDA, or without bitsandbytes, where it is refused by name; `distributed: fsdp`, which cuts
    parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm` above 0, a second process and AdaLoRA.
    """

    target: ClassVar[str] = "gym_optim.optimizers.paged_adamw_8bit:paged_adamw_8bit"
    general: ClassVar[bool] = False
    device: ClassVar[str] = "cuda"

    min_8bit_size: PositiveInt = 4096
    """Parameters of fewer numbers keep 32 bits."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of codes and scales, and of two fp32 moments for what keeps 32 bits."""
        return total_bytes(
            parameters,
            lambda group, name, shape: (
                2 * quantized_bytes(prod(shape)) if prod(shape) >= self.min_8bit_size else 8 * prod(shape)
            ),
        )

"""The options of 8-bit AdamW."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from pydantic import PositiveInt

from gym_optim.config.base import AdamOptions, Groups, PerParameter, WholeParameters, quantized_bytes, total_bytes
from gym_optim.parameter_roles import is_inside


class AdamW8bit(AdamOptions, PerParameter, WholeParameters):
    """AdamW whose moments are 8-bit codes: a quarter of its state.

        m = beta1 decode(m8) + (1 - beta1) G,    m8 = encode(m)
        v = beta2 decode(v8) + (1 - beta2) G^2,  v8 = encode(v)
        W = (1 - eta lambda) W - eta (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

    The step uses m and v as they are before they are stored. encode divides each block of 256 numbers by its largest
    magnitude, which is kept in fp32, and takes the nearest of 256 values in [-1, 1], for v in (0, 1], that lie evenly within
    each power of ten (dynamic tree quantization). Embeddings, head, norms, biases and parameters of fewer than
    `min_8bit_size` numbers get AdamW in fp32.

    State: 2 m n + 8 ceil(m n / 256) bytes for a matrix m x n, which is 2.03 a number; 8 a number of what keeps 32 bits.

    Code: ours, in plain torch. bitsandbytes is one more compiled dependency; ours is slower on a GPU, and resumes bit for bit
    on anything.

    Differs: the code of v has no zero, so that a small second moment cannot become nothing and make the next step huge.
    Blocks are of 256 numbers, as in bitsandbytes, where the paper has 2048. The paper's norm behind the embedding is not
    added.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.
    """

    target: ClassVar[str] = "gym_optim.optimizers.adamw_8bit:AdamW8bit"

    min_8bit_size: PositiveInt = 4096
    """Parameters of fewer numbers keep 32 bits, as embeddings and vectors do."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of codes and scales, and of two fp32 moments for what keeps 32 bits."""
        return total_bytes(
            parameters,
            lambda group, name, shape: (
                2 * quantized_bytes(prod(shape))
                if is_inside(group, shape) and prod(shape) >= self.min_8bit_size
                else 8 * prod(shape)
            ),
        )

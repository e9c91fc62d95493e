"""The options of BAdam."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from gym_optim.config.base import Groups
from gym_optim.config.block_coordinate import BlockCoordinateOptions, block_bytes
from gym_optim.parameter_roles import badam_block


class BAdam(BlockCoordinateOptions):
    """AdamW on one layer after another.

        B = the block whose turn it is, for `switch_interval` steps
        W in B:  m = beta1 m + (1 - beta1) G,  v = beta2 v + (1 - beta2) G^2
                 W = (1 - eta lambda) W - eta (m / (1 - beta1^k)) / (sqrt(v / (1 - beta2^k)) + epsilon)
        other W: stays as it is, its gradient goes at once, m and v are dropped

    A block is a layer, told by the path of its parameters up to the first number. What stands outside the layers rests all
    the time, as in the paper; with `include_embedding` the embeddings are one more block, the first, with `include_lm_head`
    the head and what else is there (the last norm, the head of a critic) are, the last. Embeddings tied to the head are
    embeddings. k counts the steps of the turn, m and v begin at zero with it. Which block works follows from the number of
    steps, so a resumed run goes on with it. Norms and biases do not decay.

    State: 8 bytes a number of the block that works, declared for the largest: 8 m n for a matrix m x n of it, none for
    others.

    Code: ours, from the paper: the reference is wrong as said below.

    Differs: norms and biases do not decay; in the reference they do by a slip. Weights are fp32 already, so there is no
    further copy of the block. The backward pass is whole: the memory of gradients is saved, their time is not. BAdam by ratio
    (`badam_mode: ratio`), the second mode of its code, is in no paper and is refused by name: with its defaults, a twentieth
    of the numbers for 50 steps, 300 steps never reach most of them, so it does not pass the laws that every optimizer here
    passes.

    Not with: several processes, be it `ddp` or `fsdp`, whose gradients would be exchanged before it is known which are
    needed; AdaLoRA, which looks at the gradients of all layers; parameters without names; matrices outside the layers, such
    as the head of a critic, which would rest for ever, without `include_lm_head`.
    """

    target: ClassVar[str] = "gym_optim.optimizers.badam:BAdam"

    switch_interval: PositiveInt = 50
    """Steps for which a layer works."""
    switch_mode: Literal["ascending", "descending", "random", "fixed"] = "ascending"
    """In which layers take turns: by their numbers up or down, drawn anew each round, or `fixed`, which stays with one."""
    start_block: Annotated[int | None, Field(ge=0)] = None
    """Number of the block to begin with; by default the first, or the last where the order is descending."""
    include_embedding: bool = False
    """Whether embeddings take turns too, as the first block."""
    include_lm_head: bool = False
    """Whether the head and what else stands outside the layers take turns too, as the last block."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the random order."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments for the largest block."""
        outside = {"include_embedding": self.include_embedding, "include_lm_head": self.include_lm_head}
        sizes = block_bytes(parameters, lambda group, name: badam_block({**group, **outside}, name))
        sizes.pop(None, None)
        return max(sizes.values(), default=0)

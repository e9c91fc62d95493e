"""AdamW and its nearest kin, as a recipe sees them."""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from gym_optim.config.base import AdamOptions, Alone, Beta1, Beta2, Decay, Groups, coded, each, is_inside
from gym_optim.roles import is_matrix


class AdamW(AdamOptions, Alone):
    """Adam with decoupled weight decay, fused."""

    target: ClassVar[str] = "gym_optim.torch_own:adamw"
    numberwise: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:1711.05101"


class AdamW8bit(AdamOptions, Alone):
    """AdamW whose moments are 8-bit codes: a quarter of its state."""

    target: ClassVar[str] = "gym_optim.quantized:AdamW8bit"
    paper: ClassVar[str] = "arXiv:2110.02861"

    smallest: PositiveInt = 4096
    """Parameters of fewer numbers keep 32 bits, as embeddings and vectors do."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of codes and scales, and of two fp32 moments for what keeps 32 bits."""
        return each(
            parameters,
            lambda group, name, shape: (
                2 * coded(prod(shape)) if is_inside(group, shape) and prod(shape) >= self.smallest else 8 * prod(shape)
            ),
        )


class PagedAdamW8bit(AdamW8bit):
    """8-bit AdamW of bitsandbytes whose state leaves the GPU where its memory is short; needs CUDA."""

    target: ClassVar[str] = "gym_optim.paged:paged_adamw_8bit"
    general: ClassVar[bool] = False
    device: ClassVar[str] = "cuda"
    paper: ClassVar[str] = "arXiv:2305.14314"

    smallest: PositiveInt = 4096
    """Parameters of fewer numbers keep 32 bits."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of codes and scales, and of two fp32 moments for what keeps 32 bits."""
        return each(
            parameters,
            lambda group, name, shape: 2 * coded(prod(shape)) if prod(shape) >= self.smallest else 8 * prod(shape),
        )


class AdamMini(AdamOptions, Alone):
    """AdamW with one second moment for each head of queries and keys, row of another matrix, or vector: half its state."""

    target: ClassVar[str] = "gym_optim.adam_mini:AdamMini"
    paper: ClassVar[str] = "arXiv:2406.16793"

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of the first moment and of one number for each block."""
        return each(
            parameters,
            lambda group, name, shape: 4 * prod(shape) + 4 * (prod(shape[:-1]) // (group.get("head_dim") or 1)),
        )


class ScheduleFreeAdamW(AdamOptions):
    """AdamW that averages its iterates in place of a falling rate; set `scheduler: constant`, with warm-up."""

    target: ClassVar[str] = "gym_optim.schedule_free:ScheduleFreeAdamW"
    numberwise: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:2405.15682"

    beta1: Annotated[Beta1, Field(gt=0)] = 0.9
    """Share of the average, as against the newest iterate, at which gradients are taken."""
    power: Annotated[float, Field(ge=0)] = 0.0
    """In the average, step t counts t ** power."""


class SOAP(AdamOptions, Alone):
    """Adam in the eigenbasis of Shampoo's preconditioner, for matrices inside the model."""

    target: ClassVar[str] = "gym_optim.soap:SOAP"
    paper: ClassVar[str] = "arXiv:2409.11321"

    beta1: Beta1 = 0.95
    """Decay of the running mean of the gradient."""
    beta2: Beta2 = 0.95
    """Decay of the running mean of its square, in the eigenbasis."""
    weight_decay: Decay = 0.01
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""
    shampoo_beta: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the running means of the products of the gradient with itself."""
    interval: PositiveInt = 10
    """Steps between two refreshments of the eigenbasis."""
    largest: PositiveInt = 10_000
    """Sides of a matrix that are longer are left as they are."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments, and of a mean and a basis for each side of a matrix."""
        return each(
            parameters,
            lambda group, name, shape: (
                8 * prod(shape) + is_matrix(group, shape) * sum(8 * side**2 for side in shape if side <= self.largest)
            ),
        )

"""First values of A and B other than LoRA's: what PiSSA, OLoRA and LoRA-GA have in common.

The papers take `scaling B0 A0` out of the weight and train the rest. Here the weight stays what it is, and a second
adapter beside the first, which does not train, adds `-scaling B0 A0`: the same sum. A base in bf16 then loses nothing,
leaving the adapter out leaves the base, and what is saved is a plain LoRA of twice the rank on the original base: the
trained pair and the one that takes away what it began with. It holds everything, so no seed and no data are needed to
open it again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar, cast

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_adapters.peft_base import check_floating
from gym_adapters.tuners.lora import TRAINED, LoraAdapter, Plain
from gym_core import GymError
from gym_torch.trained_part import FirstStepBatch

START = "start"  #: what peft calls the adapter that takes away what the one that trains begins with


class InitializedLoraAdapter(LoraAdapter[Plain]):
    """A low-rank update that begins with given A and B, and an output that does not notice. `initialize` finds them."""

    target_types: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear,)
    initializes: ClassVar[bool] = True
    starts_from_weights: ClassVar[bool] = True

    def __init__(self, config: Plain, model: PreTrainedModel, seed: int = 0) -> None:
        """Put two pairs beside each layer, which begin as plain LoRA does.

        Raises what `Lora` raises.
        """
        super().__init__(config, model, seed)
        self._seed = seed
        self.attach(START, config.rank)

    def low_rank(self) -> None:
        """Return None: its first values follow from the weights, which it may change."""

    @abstractmethod
    def initial_values(self, first_step: Iterable[FirstStepBatch]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return A `[rank, in]` and B `[out, rank]` for each of `layers`, in fp32."""

    @torch.no_grad()
    def initialize(self, first_step: Iterable[FirstStepBatch] = ()) -> None:
        """Find A and B and begin with them."""
        with torch.random.fork_rng():
            torch.manual_seed(self._seed)
            found = self.initial_values(first_step)
        for name, layer in self.layers().items():
            a, b = found[name]
            for adapter, sign in ((TRAINED, 1), (START, -1)):
                layer.lora_A[adapter].weight.copy_(a)
                layer.lora_B[adapter].weight.copy_(sign * b)


def factors(matrix: Tensor, rank: int, scaling: float, iterations: int | None = None) -> tuple[Tensor, Tensor]:
    """Return A `[rank, in]` and B `[out, rank]` with `scaling B A` the best approximation of a matrix of that rank.

    With `iterations` it is found by as many power iterations (arXiv:0909.4061, section 4.4), else exactly.
    """
    if iterations:  # with some directions to spare, without which the last ones are poor
        u, s, v = torch.svd_lowrank(matrix, min(rank + 8, *matrix.shape), iterations)
    else:
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        v = vh.T
    root = (s[:rank] / scaling).sqrt()
    return root[:, None] * v[:, :rank].T, u[:, :rank] * root


def weight_of(name: str, layer: LoraLayer, rank: int) -> Tensor:
    """Return the weight `[out, in]` of the layer underneath in fp32; raise GymError where it is quantized or has no such rank."""
    check_floating(name, layer.get_base_layer(), "taken apart")
    weight = cast(Tensor, layer.get_base_layer().weight).detach().float()
    if rank > min(weight.shape):
        raise GymError(
            f"{name} has no rank of {rank}: it is {weight.shape[0]} x {weight.shape[1]}",
            key="adapter.rank",
            fix=f"set a rank of at most {min(weight.shape)}, or name `target_modules` without it",
        )
    return weight

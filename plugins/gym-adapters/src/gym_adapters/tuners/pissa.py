"""PiSSA (arXiv:2404.02948): LoRA that begins as the leading part of the weight."""

from __future__ import annotations

from collections.abc import Iterable

from peft.tuners.lora import LoraLayer
from torch import Tensor

from gym_adapters.config.pissa import PiSSA
from gym_adapters.tuners.lora_init import InitializedLoraAdapter, factors, weight_of
from gym_torch.trained_part import FirstStepBatch


class PissaAdapter(InitializedLoraAdapter[PiSSA]):
    """PiSSA (arXiv:2404.02948): A and B are the leading part of the weight, its singular values shared between them."""

    def initial_values(self, first_step: Iterable[FirstStepBatch]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return `sqrt(S / scaling) V^T` and `U sqrt(S / scaling)` of the largest singular values."""
        return {name: self._leading(name, layer) for name, layer in self.layers().items()}

    def _leading(self, name: str, layer: LoraLayer) -> tuple[Tensor, Tensor]:
        rank, times = self.config.rank, self.config.iterations
        return factors(weight_of(name, layer, rank), rank, self.scaling, times if times > 0 else None)

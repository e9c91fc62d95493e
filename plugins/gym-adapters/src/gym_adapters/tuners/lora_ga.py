"""LoRA-GA (arXiv:2407.05000): LoRA that begins along the gradient of the first step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from gym_adapters.config.lora_ga import LoRAGA
from gym_adapters.tuners.lora_init import InitializedLoraAdapter, weight_of
from gym_core import GymError
from gym_torch.trained_part import FirstStepBatch


class LoraGAAdapter(InitializedLoraAdapter[LoRAGA]):
    """LoRA-GA (arXiv:2407.05000): A and B begin where the first step changes the weight most as full training would.

    From the singular vectors of the gradient, A has the first on the right, B the next on the left, both times
    `out^(1/4) / sqrt(gamma)`; scaled by alpha / sqrt(rank), as the paper does.
    """

    more: ClassVar[Mapping[str, Any]] = {"use_rslora": True}

    def initial_values(self, first_step: Iterable[FirstStepBatch]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return singular vectors of the gradients of the first step."""
        gradients, found, rank = self._gradients(first_step), {}, self.config.rank
        torch.manual_seed(self._seed)  # the batches drew, and not as often however a step is cut
        for name, layer in self.layers().items():
            weight = weight_of(name, layer, rank)
            if name not in gradients or not gradients[name].any():
                raise GymError(
                    f"the first step has no gradient at {name} to begin with",
                    key="adapter",
                    fix="set adapter: pissa, or lora",
                )
            most = min(weight.shape)
            u, _, v = torch.svd_lowrank(gradients[name].to(weight.device), q=min(4 * rank, most), niter=4)
            last = min(2 * rank, most)  # narrow layers have fewer than two times the rank
            size = weight.shape[0] ** 0.25 / self.config.stable_gamma**0.5
            found[name] = size * v[:, :rank].T, size * u[:, last - rank : last]
        return found

    def _gradients(self, first_step: Iterable[FirstStepBatch]) -> dict[str, Tensor]:
        """Return the gradients of the adapted weights, summed over the batches on the CPU."""
        sums: dict[str, Tensor] = {}
        marks = [(weight, weight.requires_grad) for weight in self.model.parameters()]
        self.model.requires_grad_(False)
        hooks = [
            _own_weight(name, layer).requires_grad_(True).register_post_accumulate_grad_hook(_adding(sums, name))
            for name, layer in self.layers().items()
        ]
        try:
            with torch.enable_grad():
                for _, loss in first_step:
                    loss().backward()
        finally:
            for hook in hooks:
                hook.remove()
            for weight, trains in marks:
                weight.requires_grad_(trains)
        return sums


def _own_weight(name: str, layer: LoraLayer) -> Tensor:
    """Return the parameter of the layer underneath. Raises GymError where it is stored otherwise: it has no gradient."""
    weight = layer.get_base_layer().weight
    if not isinstance(weight, nn.Parameter):
        raise GymError(
            f"{name} is quantized, and LoRA-GA begins along the gradient of its weight",
            key="adapter",
            fix="set adapter: pissa or eva, or load the model unquantized",
        )
    return weight


def _adding(sums: dict[str, Tensor], name: str) -> Any:
    """Return a hook that moves a gradient into a sum."""

    def add(weight: Tensor) -> None:
        assert weight.grad is not None
        gradient = weight.grad.float().cpu()
        sums[name] = sums[name] + gradient if name in sums else gradient
        weight.grad = None

    return add

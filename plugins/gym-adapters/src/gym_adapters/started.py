"""LoRA whose A and B begin elsewhere than at nothing: PiSSA, OLoRA and LoRA-GA.

The papers take `scaling B0 A0` out of the weight and train the rest. Here the weight stays what it is, and a second
adapter beside the first, which does not train, adds `-scaling B0 A0`: the same sum. A base in bf16 then loses nothing,
leaving the adapter out leaves the base, and what is saved is a plain LoRA of twice the rank on the original base: the
trained pair and the one that takes away what it began with. It holds everything, so no seed and no data are needed to
open it again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_adapters.config.started import LoRAGA, OLoRA, PiSSA
from gym_adapters.matrices import factors, weight_of
from gym_adapters.stacked import TRAINED, Plain, Stacked
from gym_core import GymError
from gym_torch.model.adapted import First

START = "start"  #: what peft calls the adapter that takes away what the one that trains begins with


class Started(Stacked[Plain]):
    """A low-rank update that begins with given A and B, and an output that does not notice. `begin` finds them."""

    fits: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear,)

    def __init__(self, config: Plain, model: PreTrainedModel, seed: int = 0) -> None:
        """Put two pairs beside each layer, which begin as plain LoRA does.

        Raises what `Stacked` raises.
        """
        super().__init__(config, model, seed)
        self._seed = seed
        self.attach(START, config.rank)

    @abstractmethod
    def find(self, first: Iterable[First]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return A `[rank, in]` and B `[out, rank]` for each of `layers`, in fp32."""

    @torch.no_grad()
    def begin(self, first: Iterable[First] = ()) -> None:
        """Find A and B and begin with them."""
        with torch.random.fork_rng():
            torch.manual_seed(self._seed)
            found = self.find(first)
        for name, layer in self.layers().items():
            a, b = found[name]
            for adapter, sign in ((TRAINED, 1), (START, -1)):
                layer.lora_A[adapter].weight.copy_(a)
                layer.lora_B[adapter].weight.copy_(sign * b)


class Pissa(Started[PiSSA]):
    """PiSSA (arXiv:2404.02948): A and B are the leading part of the weight, its singular values shared between them."""

    def find(self, first: Iterable[First]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return `sqrt(S / scaling) V^T` and `U sqrt(S / scaling)` of the largest singular values."""
        return {name: self._leading(name, layer) for name, layer in self.layers().items()}

    def _leading(self, name: str, layer: LoraLayer) -> tuple[Tensor, Tensor]:
        rank, times = self.config.rank, self.config.iterations
        return factors(weight_of(name, layer, rank), rank, self.scaling, times if times > 0 else None)


class Olora(Started[OLoRA]):
    """OLoRA (arXiv:2406.01775): B has the first columns of Q and A the first rows of R, where `Q R = W`."""

    def find(self, first: Iterable[First]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the leading part of the QR decomposition of each weight."""
        found, rank = {}, self.config.rank
        for name, layer in self.layers().items():
            q, r = torch.linalg.qr(weight_of(name, layer, rank))
            found[name] = r[:rank], q[:, :rank]
        return found


class LoraGA(Started[LoRAGA]):
    """LoRA-GA (arXiv:2407.05000): A and B begin where the first step changes the weight most as full training would.

    From the singular vectors of the gradient, A has the first on the right, B the next on the left, both times
    `out^(1/4) / sqrt(gamma)`; scaled by alpha / sqrt(rank), as the paper does.
    """

    more: ClassVar[Mapping[str, Any]] = {"use_rslora": True}

    def find(self, first: Iterable[First]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return singular vectors of the gradients of the first step."""
        gradients, found, rank = self._gradients(first), {}, self.config.rank
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
            size = weight.shape[0] ** 0.25 / self.config.gamma**0.5
            found[name] = size * v[:, :rank].T, size * u[:, last - rank : last]
        return found

    def _gradients(self, first: Iterable[First]) -> dict[str, Tensor]:
        """Return the gradients of the adapted weights, summed over the batches on the CPU."""
        sums: dict[str, Tensor] = {}
        marks = [(weight, weight.requires_grad) for weight in self.model.parameters()]
        self.model.requires_grad_(False)
        hooks = [
            layer.get_base_layer().weight.requires_grad_(True).register_post_accumulate_grad_hook(_adding(sums, name))
            for name, layer in self.layers().items()
        ]
        try:
            with torch.enable_grad():
                for _, loss in first:
                    loss().backward()
        finally:
            for hook in hooks:
                hook.remove()
            for weight, trains in marks:
                weight.requires_grad_(trains)
        return sums


def _adding(sums: dict[str, Tensor], name: str) -> Any:
    """Return a hook that moves a gradient into a sum."""

    def add(weight: Tensor) -> None:
        assert weight.grad is not None
        gradient = weight.grad.float().cpu()
        sums[name] = sums[name] + gradient if name in sums else gradient
        weight.grad = None

    return add

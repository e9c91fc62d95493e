"""OLoRA (arXiv:2406.01775): LoRA that begins as the leading part of the QR decomposition of the weight."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gym_adapters.config.olora import OLoRA
from gym_adapters.tuners.lora_init import InitializedLoraAdapter, weight_of
from gym_torch.trained_part import FirstStepBatch


class OLoraAdapter(InitializedLoraAdapter[OLoRA]):
    """OLoRA (arXiv:2406.01775): B has the first columns of Q and A the first rows of R, where `Q R = W`."""

    def initial_values(self, first_step: Iterable[FirstStepBatch]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the leading part of the QR decomposition of each weight."""
        found, rank = {}, self.config.rank
        for name, layer in self.layers().items():
            q, r = torch.linalg.qr(weight_of(name, layer, rank))
            found[name] = r[:rank], q[:, :rank]
        return found

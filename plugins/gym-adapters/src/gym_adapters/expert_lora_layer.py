"""Runs the experts of a mixture with low-rank updates beside their matrices, which stay as they are.

`x W_e + scaling (x A_e) B_e` needs no copy of W, whereas peft adds the update to the whole tensor before every pass: that is as
large as all experts, is kept for the backward pass, has a gradient of the same size, and in bf16 loses what is smaller than its
rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.lora.layer import ParamWrapper
from torch import Tensor, nn
from torch.nn import functional

from gym_torch.quantization.expert_layer import Update, mixed

NAME = "default"  #: of the adapter, for peft
RANKS = 8  #: numbers that make up whole grains in any precision


class LowRankExperts(ParamWrapper):
    """Peft's place for the update of one tensor of experts; the outermost one of a layer runs them with all updates."""

    @classmethod
    def of(cls, layer: ParamWrapper, options: LoraConfig) -> LowRankExperts:
        """Return one in place of a layer of peft, with the same weights, and so for the layers inside of it."""
        inner = layer.base_layer
        with torch.random.fork_rng():  # peft draws first values, which those of the layer replace
            made = cls(
                cls.of(inner, options) if isinstance(inner, ParamWrapper) else inner,
                NAME,
                layer.parameter_name,
                options,
                r=layer.r[NAME],
                lora_alpha=layer.lora_alpha[NAME],
            )
        made.lora_A, made.lora_B = layer.lora_A, layer.lora_B
        return made

    def forward(self, x: Tensor, *args: Any, **options: Any) -> Any:
        """Return what the experts make of tokens `[n, dim]`; `args` are the chosen experts and their weights, `[n, k]`."""
        if self.disable_adapters or self.merged:
            return super().forward(x, *args, **options)
        updates: dict[str, Update] = {}
        layer: nn.Module = self
        while isinstance(layer, ParamWrapper):
            updates[layer.parameter_name] = _update(layer)
            layer = layer.base_layer
        return mixed(layer, updates, x, *args, **options)


def _update(layer: ParamWrapper) -> Update:
    """Return the pair of a tensor as peft keeps it: A `[experts rank, in]`, B `[out, rank experts]`; ranks made whole."""
    (name,) = layer.active_adapters
    rank, experts = layer.r[name], layer.num_experts
    more = -rank % RANKS  # of zeros, which change nothing
    lower = functional.pad(layer.lora_A[name].weight.unflatten(0, (experts, rank)), (0, 0, 0, more))
    upper = functional.pad(
        layer.lora_B[name].weight.unflatten(1, (rank, experts)).permute(2, 1, 0), (0, 0, 0, more)
    ).contiguous()
    return lower.transpose(-2, -1), layer.scaling[name] * upper

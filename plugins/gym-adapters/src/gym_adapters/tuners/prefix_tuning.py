"""Prefix tuning (arXiv:2101.00190): keys and values of virtual tokens in every layer."""

from __future__ import annotations

import torch
from peft import PeftConfig, PrefixTuningConfig
from torch import Tensor

from gym_adapters.config.prefix_tuning import PrefixTuning
from gym_adapters.virtual_tokens import STATE, Pair, VirtualTokenAdapter


class PrefixTuningAdapter(VirtualTokenAdapter[PrefixTuning]):
    """Keys and values of each layer, without the network in between that the paper (arXiv:2101.00190) trains them through."""

    def start(self) -> Tensor:
        """Return the first keys and values, `[tokens, layers * 2 * key-value heads * head_dim]`."""
        pairs = self._compute(self._drawn())
        self._layers, (_, self._heads, _, self._dim) = len(pairs), pairs[0][0].shape
        made = torch.stack([torch.cat(pair) for pair in pairs]).permute(3, 0, 1, 2, 4).flatten(1)
        return made if self.config.init == "sample_vocab" else torch.randn_like(made)

    def keys_and_values(self) -> list[Pair]:
        """Return what trains, layer by layer."""
        weight = self.model.get_parameter(STATE)
        parts = weight.view(-1, self._layers, 2, self._heads, self._dim).permute(1, 2, 3, 0, 4)
        return [(part[:1], part[1:]) for part in parts]

    def peft_config(self) -> PeftConfig:
        """Return peft's options of the same adapter."""
        return PrefixTuningConfig(
            token_dim=self._heads * self._dim,
            num_layers=self._layers,
            num_attention_heads=self._heads,
            **self._shape(),
        )

"""LoRA through peft (arXiv:2106.09685): `W + (alpha / rank) B A`, where B is zero at first."""

from __future__ import annotations

from typing import Any, ClassVar

from peft import LoraConfig, PeftConfig
from torch import nn

from gym_adapters.config.lora import LoRA
from gym_adapters.tuned import Tuned


class Lora(Tuned[LoRA]):
    """A model with a low-rank update beside its linear layers."""

    fits: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear, nn.Embedding)

    def options(self, modules: Any, extra: list[str] | None) -> PeftConfig:
        """Return the options of plain LoRA."""
        config = self.config
        return LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha or 2 * config.rank,
            lora_dropout=config.dropout,
            target_modules=modules,
            modules_to_save=extra,
            task_type="CAUSAL_LM",
        )

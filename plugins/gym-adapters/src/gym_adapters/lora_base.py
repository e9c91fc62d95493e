"""The base of the LoRA family through peft: `W + scaling B A`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from peft import LoraConfig, PeftConfig
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gym_adapters.config.base import LowRankOptions
from gym_adapters.lora_product import join_products
from gym_adapters.peft_base import PeftAdapter

Low = TypeVar("Low", bound=LowRankOptions)


class LowRankAdapter(PeftAdapter[Low]):
    """A model with a low-rank update beside its linear layers; base of the whole family."""

    target_types: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear, Conv1D, nn.Embedding)
    more: ClassVar[Mapping[str, Any]] = {}
    """What peft is told beside rank, alpha and dropout."""

    def __init__(self, config: Low, model: PreTrainedModel, seed: int = 0) -> None:
        """Put the layers into `model`, in place, as every adapter of peft does."""
        super().__init__(config, model, seed)
        join_products(self.model)

    def peft_config(self, target_modules: list[str], modules_to_save: list[str] | None) -> PeftConfig:
        """Return the options of LoRA, and what is told beside."""
        return LoraConfig(
            r=self.config.rank,
            lora_alpha=self.config.scaled_by,  # type: ignore[arg-type] # peft only divides by it
            lora_dropout=self.config.dropout,
            target_modules=target_modules,
            modules_to_save=modules_to_save,
            task_type="CAUSAL_LM",
            **self.more,
        )

    def layers(self) -> dict[str, LoraLayer]:
        """Return the layers that are adapted, by name."""
        return lora_layers(self.model)

    def describe(self) -> str:
        """Return rank, alpha and what is adapted."""
        return f"rank {self.config.rank}, alpha {self.config.scaled_by:g}: {super().describe()}"


def lora_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """Return the layers of a model that hold LoRA adapters, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}

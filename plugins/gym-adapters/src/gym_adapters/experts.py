"""LoRA of the experts of a mixture through peft, which takes the 3-D tensors that transformers keeps them in."""

from __future__ import annotations

from typing import Any

from peft import LoraConfig, PeftConfig
from torch import nn
from transformers import PreTrainedModel

from gym_adapters.config.sparse import ExpertLoRA
from gym_adapters.names import split, within
from gym_adapters.tuned import Tuned
from gym_core import GymError


class Experts(Tuned[ExpertLoRA]):
    """`W_e + (alpha / rank) B_e A_e` for each expert e of tensors `[experts, out, in]`; every B_e is zero at first."""

    def __init__(self, config: ExpertLoRA, model: PreTrainedModel, seed: int = 0) -> None:
        """Put the updates in. Raises GymError where the model has no such tensors."""
        wanted = split(config.parameters)
        fused = [name for name, weight in model.named_parameters() if weight.dim() == 3]
        self._tensors = [name for name in fused if wanted == ("all",) or any(within(name, part) for part in wanted)]
        missing = (
            [] if wanted == ("all",) else [part for part in wanted if not any(within(name, part) for name in fused)]
        )
        if missing or not self._tensors:
            have = sorted({".".join(name.split(".")[-2:]) for name in fused})
            raise GymError(
                f"the model has no experts `{missing[0]}`"
                if missing
                else "the model has no experts in tensors of their own",
                key="adapter.parameters" if missing else "adapter",
                fix=f"it has: {', '.join(have)}" if have else "set adapter: lora",
            )
        super().__init__(config, model, seed)

    def options(self, modules: Any, extra: list[str] | None) -> PeftConfig:
        """Return the options of LoRA on parameters."""
        config = self.config
        return LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha or 2 * config.rank,
            target_modules=modules or [],
            target_parameters=sorted({".".join(name.split(".")[-3:]) for name in self._tensors}),
            modules_to_save=extra,
            task_type="CAUSAL_LM",
        )

    def every(self, model: PreTrainedModel) -> list[str]:
        """Return all linear layers but the head; peft's own `all-linear` would take the experts a second time."""
        head = model.get_output_embeddings()
        layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and layer is not head]
        return sorted({name.rpartition(".")[2] for name in layers})

"""LoRA of the experts of a mixture through peft, which takes the 3-D tensors that transformers keeps them in."""

from __future__ import annotations

from peft import LoraConfig, PeftConfig
from peft.tuners.lora import Linear
from peft.tuners.lora.layer import ParamWrapper
from torch import nn
from transformers import PreTrainedModel

from gym_adapters.config.base import split
from gym_adapters.config.expert_lora import ExpertLoRA
from gym_adapters.expert_lora_layer import LowRankExperts
from gym_adapters.peft_base import PeftAdapter
from gym_adapters.target_modules import within
from gym_core import GymError
from gym_torch.quantization.expert_layer import runs_beside
from gym_torch.quantization.experts import seen_as_parameters


class ExpertLoraAdapter(PeftAdapter[ExpertLoRA]):
    """`W_e + (alpha / rank) B_e A_e` for each expert e of tensors `[experts, out, in]`; every B_e is zero at first."""

    def __init__(self, config: ExpertLoRA, model: PreTrainedModel, seed: int = 0) -> None:
        """Put the updates in. Raises GymError where the model has no such tensors."""
        with seen_as_parameters(model):
            wanted = split(config.target_parameters)
            fused = [
                f"{place}.{name}"
                for place, module in model.named_modules()
                for name, weight in module.named_parameters(recurse=False)
                if weight.dim() == 3 and not isinstance(module, nn.Conv1d)
            ]
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
                    key="adapter.target_parameters" if missing else "adapter",
                    fix=f"it has: {', '.join(have)}" if have else "set adapter: lora",
                )
            super().__init__(config, model, seed)
            for name, module in list(model.named_modules()):
                layer = module.get_base_layer() if isinstance(module, ParamWrapper) else None
                if layer is not None and runs_beside(layer) and not name.endswith("base_layer"):
                    # the outermost of a layer
                    model.set_submodule(name, LowRankExperts.of(module, self.peft_model.peft_config["default"]))

    def peft_config(self, target_modules: list[str], modules_to_save: list[str] | None) -> PeftConfig:
        """Return the options of LoRA on parameters."""
        config = self.config
        return LoraConfig(
            r=config.rank,
            lora_alpha=config.scaled_by,
            target_modules=target_modules,
            target_parameters=self._tensors,
            modules_to_save=modules_to_save,
            task_type="CAUSAL_LM",
        )

    def describe(self) -> str:
        """Return rank, alpha, and the tensors and layers that are adapted."""
        config = self.config
        tensors = dict.fromkeys(".".join(name.split(".")[-2:]) for name in self._tensors)
        layers = [name for name, layer in self.model.named_modules() if isinstance(layer, Linear)]
        kinds = [*tensors, *dict.fromkeys(name.rpartition(".")[2] for name in layers)]
        whole = [f"{name} whole" for name in split(config.modules_to_save)]
        return f"rank {config.rank}, alpha {config.scaled_by:g}: {', '.join(kinds + whole)}"

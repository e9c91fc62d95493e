"""Several trained LoRA adapters beside one model: each with a weight, switched at any time, merged and taken out again.

stack = MultiAdapter(model, {"law": "runs/law", "code": "runs/code"})
stack.use(law=0.7, code=0.3)
stack.merge()
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from peft import PeftConfig, PeftModel
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import PreTrainedModel

from gym_adapters.lora_base import lora_layers
from gym_adapters.lora_checkpoint import adapter_at, check_beside, concatenated, read_lora, write_lora
from gym_adapters.peft_base import check_floating, targets_of
from gym_adapters.peft_warnings import quiet
from gym_core import GymError
from gym_torch.console import say
from gym_torch.model.tasks import ROUNDING, TASKS, answers, probe


class MultiAdapter:
    """A model with adapters that all were trained on it. What it computes is `W + sum of weight * scaling B A`."""

    def __init__(self, model: PreTrainedModel, adapters: Mapping[str, str | Path]) -> None:
        """Load adapters, of runs or from folders, into `model`, in place, by names of your own; at first all work, with weight 1.

        Raises GymError where one is no plain LoRA, or holds other weights of the model than this one has.
        """
        self.saved = {name: read_lora(adapter_at(folder)) for name, folder in adapters.items()}
        if not self.saved:
            raise GymError("a stack needs an adapter", fix='name one: MultiAdapter(model, {"law": "runs/law"})')
        for each in self.saved.values():
            check_beside(each.beside, model, each.path)
        (first, *further), paths = self.saved, {name: str(each.path) for name, each in self.saved.items()}
        options = {name: PeftConfig.from_pretrained(path) for name, path in paths.items()}
        with quiet(), targets_of(model, *options.values()) as modules:
            options[first].task_type = None  # for a task peft asks more of a model than modules
            peft = PeftModel.from_pretrained(modules, paths[first], adapter_name=first, config=options[first])
            for name in further:
                peft.load_adapter(paths[name], adapter_name=name)
        self.model = model.eval().requires_grad_(False)
        self._kept: dict[str, nn.Parameter] = {}
        self.use(**dict.fromkeys(self.saved, 1.0))

    def use(self, **weights: float) -> None:
        """Let these adapters work, each with a weight; those that are not named rest. None leave the model as it was.

        Raises GymError where a name is unknown, or the adapters are merged.
        """
        if self._kept:
            raise GymError("the adapters are merged", fix="call unmerge first")
        if strange := weights.keys() - self.saved.keys():
            raise GymError(f"there is no adapter `{min(strange)}`", fix=f"there are: {', '.join(self.saved)}")
        self.weights = dict(weights)
        for layer in self._layers().values():
            for name, weight in weights.items():
                layer.set_scale(name, weight)
            layer.set_adapter(list(weights), inference_mode=True)

    def merge(self) -> float:
        """Add what works to the weights, for speed; return and print by how much the logits differ from before.

        The weights as they were are kept for `unmerge`, for in bf16 what is added cannot be subtracted again.

        Raises GymError where a weight is quantized, the adapters are merged already, or rounding the sum changes what the model
        says; nothing is merged then.
        """
        if self._kept:
            raise GymError("the adapters are merged already", fix="call unmerge first")
        layers = self._layers()
        for name, layer in layers.items():
            check_floating(name, layer.get_base_layer(), "merged into")
        ask, tokens = TASKS["causal-lm"].asked, probe(self.model)
        before = answers(ask, self.model, tokens)
        for name, layer in layers.items():
            base = layer.get_base_layer()
            kept = self._kept[name] = base.weight
            base.weight = nn.Parameter(kept.detach().to(torch.float32, copy=True), requires_grad=False)
            cast(BaseTunerLayer, layer).merge(safe_merge=True)
            base.weight.data = base.weight.data.to(kept.dtype)  # however many there are, the sum is rounded once
        apart = answers(ask, self.model, tokens) - before
        relative, difference = float(apart.norm() / before.norm()), float(apart.abs().max())
        if not relative <= ROUNDING.get(self.model.dtype, 0.0):
            self.unmerge()
            raise GymError(
                f"the merged model disagrees with its adapters: its logits are {relative:.2g} off (relative)",
                fix="leave them unmerged, or load the model in fp32",
            )
        say(f"merged {', '.join(self.weights)}: the logits differ by at most {difference:.2g}")
        return difference

    def unmerge(self) -> None:
        """Put the weights back as they were, bit for bit; tied ones are tied again."""
        for name, layer in self._layers().items():
            if name in self._kept:
                layer.get_base_layer().weight = self._kept[name]
                layer.merged_adapters.clear()
        self._kept.clear()

    def save(self, path: str | Path, base: str) -> Path:
        """Write what works as one plain LoRA for the model `base`, of the sum of the ranks, and return the folder.

        Raises GymError where nothing works.
        """
        if not self.weights:
            raise GymError("no adapter of the stack works, so there is nothing to save", fix="call use(name=1.0) first")
        return write_lora(
            Path(path), base, concatenated([(self.saved[name], weight) for name, weight in self.weights.items()])
        )

    def _layers(self) -> dict[str, LoraLayer]:
        return lora_layers(self.model)

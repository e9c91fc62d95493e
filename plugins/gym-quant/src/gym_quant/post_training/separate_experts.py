"""Experts of a mixture as linear layers, one for each matrix: transformers computes with all of a layer stacked in one tensor.

Each expert has `gate_proj`, `up_proj` and `down_proj` of its own, which most families call so in their files too; Mixtral's have
`w1`, `w3` and `w2`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from gym_torch.language_part import in_language_part
from gym_torch.quantization.expert_layer import runs_beside

UNUSED = {
    "has_bias",
    "has_post_expert_norm",
    "is_transposed",
}  #: of what transformers declares, what cannot be separated


class Expert(nn.Module):
    """The matrices of one expert."""

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor) -> None:
        """Take matrices `[out, in]`."""
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = map(_linear, (gate, up, down))


class SeparateExperts(nn.Module):
    """What computes as a layer of stacked experts does; a token whose expert has no number in it goes nowhere."""

    def __init__(self, experts: Any) -> None:
        """Cut the tensors `[experts, ., .]` of a layer up, without a copy."""
        super().__init__()
        self.gated = experts._apply_gate
        for number, (both, down) in enumerate(zip(experts.gate_up_proj, experts.down_proj, strict=True)):
            gate, up = both.chunk(2)
            self.add_module(str(number), Expert(gate, up, down))
        experts._parameters.clear()

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the weighted sum `[n, dim]` of what the chosen experts make of tokens `[n, dim]`."""
        found = torch.zeros_like(hidden_states)
        for number, expert in enumerate(self.children()):
            rows, places = (top_k_index == number).nonzero(as_tuple=True)
            if len(rows):
                inputs = hidden_states[rows]
                inner = self.gated(torch.cat([expert.gate_proj(inputs), expert.up_proj(inputs)], -1))
                found.index_add_(0, rows, expert.down_proj(inner) * top_k_weights[rows, places, None])
        return found


def separate(layer: nn.Module) -> nn.Module:
    """Put such experts in the place of stacked ones in a decoder layer, and return it."""
    for name, module in list(layer.named_modules()):
        if runs_beside(module):
            layer.set_submodule(name, SeparateExperts(module))
    return layer


def ignoring(layer: nn.Module, real: Tensor) -> list[Any]:
    """Have tokens that are padding go to no expert; `real` `[tokens]` says which are none. Return the hooks that do it."""

    def hook(module: nn.Module, args: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        states, index, weights = args
        return states, index.masked_fill(~real[:, None], -1), weights

    return [part.register_forward_pre_hook(hook) for part in layer.modules() if isinstance(part, SeparateExperts)]


def stacked(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the layers of stacked experts that can be separated, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if runs_beside(module) and module.has_gate and not any(getattr(module, each) for each in UNUSED)
    }


def several_matrices(model: PreTrainedModel) -> list[str]:
    """Return the names of weights of the language model that hold several matrices each.

    A convolution of each channel by itself is one matrix.
    """
    language = in_language_part(model)
    return [name for name, weight in model.named_parameters() if weight.squeeze().dim() > 2 and language(name)]


def columns(model: PreTrainedModel) -> dict[str, int]:
    """Return the columns of each matrix of an expert, by the name of its weight."""
    found = {}
    for place, layer in stacked(model).items():
        experts, hidden, width = layer.get_parameter("down_proj").shape
        for number in range(experts):
            for name, size in (("gate_proj", hidden), ("up_proj", hidden), ("down_proj", width)):
                found[f"{place}.{number}.{name}.weight"] = size
    return found


def file_names(model: PreTrainedModel) -> dict[str, str]:
    """Return what the files of a family call each matrix of an expert, by the name of its weight here.

    A matrix that its files do not hold by itself is left out. Transformers cuts up stacked tensors of one number a matrix, which
    says what it calls them.
    """
    found: dict[str, str] = {}
    for place, layer in stacked(model).items():
        count = len(layer.get_parameter("down_proj"))
        for stack, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            own = [f"{place}.{number}.{part}.weight" for number in range(count) for part in parts]
            marked = torch.arange(len(own), dtype=torch.float32).view(count, len(parts), 1)
            told = revert_weight_conversion(model, {f"{place}.{stack}": marked})
            found |= {own[int(mark)]: name for name, mark in told.items() if mark.numel() == 1}
    return found


def _linear(weight: Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made

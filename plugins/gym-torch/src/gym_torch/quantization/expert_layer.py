"""Computes the experts of a mixture: matrices in one tensor, quantized matrices, or matrices with low-rank updates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from gym_torch.quantization.weights import Stored

GRAIN = 16  #: bytes, of which the strides of a grouped product have to be multiples
DECLARED = {"has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "_is_expert_parallel"}
Update = tuple[Tensor, Tensor]  #: A `[experts, in, rank]` and scaled B `[experts, rank, out]`, in the order of `x A B`


class StoredExperts(Stored):
    """Protocol of a layer of experts whose tensors `[experts, ., .]` are quantized."""

    layer: nn.Module  #: as transformers made it, with the same tensors and modules as this one

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the output of the experts for tokens."""
        return mixed(self, {}, hidden_states, top_k_index, top_k_weights)

    @abstractmethod
    def stores(self, name: str) -> bool:
        """Return whether the tensor of this name is stored; else the layer has it as a parameter."""

    @abstractmethod
    def product(self, name: str, rows: Tensor, ends: Tensor) -> Tensor:
        """Return every row times the matrix of its expert, `[n, out]`; rows `[n, in]` lie sorted by expert, and end at `ends`."""


def runs_beside(experts: nn.Module) -> bool:
    """Return whether transformers runs these experts through its experts interface, which declares their layout."""
    layer = _declared(experts)
    return vars(layer).keys() >= DECLARED and not layer._is_expert_parallel


def _declared(experts: nn.Module) -> nn.Module:
    """Return the original layer of transformers, which declares its layout."""
    return experts.layer if isinstance(experts, StoredExperts) else experts


def mixed(experts: nn.Module, updates: Mapping[str, Update], tokens: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    """Return the weighted sum of the outputs of the chosen experts for each token, `[n, dim]`, in the dtype of the tokens.

    Args:
        experts: a layer of experts as transformers declares them: gated or not, transposed or not, with biases or not.
        updates: by the name of the tensor.
        tokens: `[n, dim]`; under autocast the products run in its dtype.
        chosen: `[n, k]` int64, numbers of experts.
        shares: `[n, k]`, the weight of each chosen expert.

    """
    stored, layer = experts if isinstance(experts, StoredExperts) else None, _declared(experts)
    kind, device = tokens.device.type, tokens.device
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tokens.dtype
    owners, order = chosen.flatten().sort(stable=True)
    ends = torch.searchsorted(owners, torch.arange(layer.num_experts, device=device), right=True, out_int32=True)

    def linear(name: str, rows: Tensor) -> Tensor:
        if stored is not None and stored.stores(name):
            found = stored.product(name, rows, ends)
        else:
            weight = layer.get_parameter(name).to(dtype)
            found = grouped(rows, weight if layer.is_transposed else weight.transpose(-2, -1), ends)
        if layer.has_bias:
            found = found + layer.get_parameter(f"{name}_bias")[owners].to(dtype)
        if name in updates:
            lower, upper = updates[name]
            found = found + grouped(grouped(rows, lower.to(dtype), ends), upper.to(dtype), ends)
        return found

    rows = tokens.to(dtype)[order // chosen.shape[-1]]
    inner = layer._apply_gate(linear("gate_up_proj", rows)) if layer.has_gate else layer.act_fn(linear("up_proj", rows))
    found = linear("down_proj", inner)
    if layer.has_post_expert_norm:
        found = layer.post_expert_norm(found)
    found = found * shares.flatten()[order].unsqueeze(-1)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=device))
    # Each token adds up its own experts, in their order: the same bits every time, on any device.
    return found[back].unflatten(0, chosen.shape).sum(1).to(tokens.dtype)


def grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return every row times the matrix of its expert, `[n, out]`.

    Args:
        rows: `[n, in]`, sorted by expert.
        weights: `[experts, in, out]`.
        ends: `[experts]` int32, where the rows of each expert end.

    """
    if _fits(rows) and _fits(weights):
        product: Tensor = functional.grouped_mm(rows, weights, offs=ends)
        return product
    counts = ends.diff(prepend=ends.new_zeros(1)).tolist()
    return torch.cat([part @ weight for part, weight in zip(rows.split(counts), weights, strict=True)])


def _fits(tensor: Tensor) -> bool:
    """Return whether torch has a grouped product for it: from 2.10 on, not in float64, for aligned sizes, on recent devices."""
    if tensor.dtype is torch.float64 or not hasattr(functional, "grouped_mm"):
        return False
    if tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) < (8, 0):
        return False
    whole = all(stride == 1 or stride * tensor.element_size() % GRAIN == 0 for stride in tensor.stride())
    return whole and 1 in tensor.stride()[-2:]

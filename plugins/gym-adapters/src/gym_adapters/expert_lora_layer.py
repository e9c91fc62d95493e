"""Runs the experts of a mixture with low-rank updates beside their matrices, which stay as they are.

`x W_e + scaling (x A_e) B_e` needs no copy of W, whereas peft adds the update to the whole tensor before every pass: that is as
large as all experts, is kept for the backward pass, has a gradient of the same size, and in bf16 loses what is smaller than its
rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.lora.layer import ParamWrapper
from torch import Tensor, nn
from torch.nn import functional

NAME = "default"  #: of the adapter, for peft
GRAIN = 16  #: bytes, of which the strides of a grouped product have to be multiples
DECLARED = {"has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "_is_expert_parallel"}
RANKS = 8  #: numbers that make up whole grains in any precision
Update = tuple[Tensor, Tensor]  #: A `[experts, in, rank]` and scaled B `[experts, rank, out]`, in the order of `x A B`


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


def runs_beside(experts: nn.Module) -> bool:
    """Return whether transformers runs these experts by its own interface, which says all that there is to know of them."""
    return vars(experts).keys() >= DECLARED and not experts._is_expert_parallel


def mixed(experts: nn.Module, updates: Mapping[str, Update], tokens: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    """Return the weighted sum of what the chosen experts make of each token, `[n, dim]`, in its dtype.

    Args:
        experts: a layer of experts as transformers declares them: gated or not, transposed or not, with biases or not.
        updates: by the name of the tensor.
        tokens: `[n, dim]`; under autocast the products run in its dtype.
        chosen: `[n, k]` int64, numbers of experts.
        shares: `[n, k]`, how much each counts.

    """
    kind, device = tokens.device.type, tokens.device
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tokens.dtype
    owners, order = chosen.flatten().sort(stable=True)
    ends = torch.searchsorted(owners, torch.arange(experts.num_experts, device=device), right=True, out_int32=True)

    def linear(name: str, rows: Tensor) -> Tensor:
        weight = experts.get_parameter(name).to(dtype)
        found = grouped(rows, weight if experts.is_transposed else weight.transpose(-2, -1), ends)
        if experts.has_bias:
            found = found + experts.get_parameter(f"{name}_bias")[owners].to(dtype)
        if name in updates:
            lower, upper = updates[name]
            found = found + grouped(grouped(rows, lower.to(dtype), ends), upper.to(dtype), ends)
        return found

    rows = tokens.to(dtype)[order // chosen.shape[-1]]
    inner = (
        experts._apply_gate(linear("gate_up_proj", rows))
        if experts.has_gate
        else experts.act_fn(linear("up_proj", rows))
    )
    found = linear("down_proj", inner)
    if experts.has_post_expert_norm:
        found = experts.post_expert_norm(found)
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
    """Return whether torch multiplies it in groups: from 2.10 on, not in float64, in whole grains, on recent devices."""
    if tensor.dtype is torch.float64 or not hasattr(functional, "grouped_mm"):
        return False
    if tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) < (8, 0):
        return False
    whole = all(stride == 1 or stride * tensor.element_size() % GRAIN == 0 for stride in tensor.stride())
    return whole and 1 in tensor.stride()[-2:]


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

"""Gradient checkpointing (`train.gradient_checkpointing`): what layers save for the backward pass, and what they recompute.

All policies give the same numbers, and differ in memory and time.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from gym_torch.kernels import bf16_products  # noqa: F401, which registers a product that is kept
from gym_torch.memory.malloc import give_back_freed
from gym_torch.memory.offloading import checkpoint_offloaded
from gym_torch.memory.tiling import tile

Policy = bool | int | str  #: as `train.gradient_checkpointing` has it
LONG = ("tiled", "offload")  #: those for long rows, where memory counts before speed

_aten = torch.ops.aten
#: What `selective` keeps: products of matrices and attention, which take most of the time of a layer.
_KEPT = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten._grouped_mm.default,
        torch.ops.gym.sum_of_products.default,
        *([torch.ops.mkldnn._linear_pointwise.default] if torch.backends.mkldnn.is_available() else ()),
    }
)
#: Attention, and the place of its argument `dropout_p`. Where that is not 0 it is computed again: it draws random numbers, and
#: what comes behind it and is computed again would draw other ones than before, were they not drawn again as well.
ATTENTION = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default: 3,
    _aten._scaled_dot_product_flash_attention.default: 3,
    _aten._scaled_dot_product_efficient_attention.default: 5,
    _aten._scaled_dot_product_cudnn_attention.default: 5,
}


def recomputable(model: nn.Module) -> list[GradientCheckpointingLayer]:
    """Return the decoder layers that transformers can checkpoint."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def every(policy: Policy) -> int:
    """Return n where every n-th layer recomputes; 0 where none does."""
    return int(policy) if isinstance(policy, int) else 1


def recompute_layers(model: PreTrainedModel, policy: Policy = True) -> None:
    """Have layers save less for the backward pass, and recompute the rest there.

    `auto` that no planner has replaced means every layer.
    """
    if not every(policy):
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if policy == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, what_is_kept)
    with warnings.catch_warnings():  # the newer name for it is not in all of transformers 5
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    if policy in LONG and model.device.type == "cpu":
        give_back_freed()
    for number, layer in enumerate(recomputable(model)):
        layer.gradient_checkpointing = number % every(policy) == 0
        if policy in LONG:
            tile(layer)
        if policy == "offload":
            layer._gradient_checkpointing_func = checkpoint_offloaded


def what_is_kept(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Return whether the policy `selective` keeps what an operation returns, in the form that torch asks for it."""
    place = ATTENTION.get(operation)
    kept = (
        operation in _KEPT if place is None else not kwargs.get("dropout_p", args[place] if place < len(args) else 0.0)
    )
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

"""What adapters that change attention share: they take the place of a model's own, and watch what enters its backbone."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from gym_core import GymError
from gym_torch.attention.segment_attention import segment_attention
from gym_torch.language_part import takes_text_alone
from gym_torch.policy import evaluating

TRIAL = "gym_trial"
TOKENS = 5  #: of the text that a model is tried out on


def attend_by(model: PreTrainedModel, name: str) -> int:
    """Set a model to an attention that is registered with transformers and takes options of its own.

    Returns how many times it attends in a pass. Raises GymError where the model attends to images too, or in a way of its own, or
    hands no options on: some families drop them, some go past their backbone, and some, such as those with sinks, compute what
    the attention here does not.
    """
    if not takes_text_alone(model):
        raise GymError(
            f"{type(model).__name__} attends to more than text, and this adapter changes attention to text alone",
            key="adapter",
            fix="set adapter: lora",
        )
    backbone = model.base_model
    options = inspect.signature(backbone.forward).parameters.values()
    if not any(option.kind is option.VAR_KEYWORD for option in options):
        raise own_way(model)
    reached: list[bool] = []

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        trial: bool = False,
        **more: Any,
    ) -> tuple[Tensor, None]:
        reached.append(trial)
        return segment_attention(module, query, key, value, mask, **more)

    AttentionInterface.register(TRIAL, attention)
    AttentionMaskInterface.register(TRIAL, sdpa_mask)
    wanted = tried(model)
    model.set_attn_implementation(TRIAL)
    found = tried(model, trial=True)
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name or not reached or not all(reached) or _differ(found, wanted):
        raise own_way(model)
    return len(reached)


def tried(model: PreTrainedModel, **options: Any) -> Tensor:
    """Return what a model says of a few tokens, where its backbone is given options for attention."""
    ids = torch.arange(TOKENS, device=model.device)[None] % model.config.get_text_config().vocab_size
    handle = model.base_model.register_forward_pre_hook(
        lambda backbone, args, given: (args, given | options), with_kwargs=True
    )
    try:
        with torch.no_grad(), evaluating(model):
            said: Tensor = model(input_ids=ids)[0]
    finally:
        handle.remove()
    return said


def own_way(model: PreTrainedModel) -> GymError:
    """Return the error for a model whose attention is out of reach."""
    return GymError(
        f"{type(model).__name__} attends in a way of its own, which this adapter cannot change",
        key="adapter",
        fix="set adapter: lora",
    )


def _differ(found: Tensor, wanted: Tensor) -> bool:
    """Whether outputs differ by more than rounding; those without numbers, of a plan, do not."""
    if found.is_meta:
        return False
    rounding = 1e-3 if found.dtype == torch.float32 else 5e-2
    return float((found - wanted).float().norm()) > rounding * float(wanted.float().norm())


def shape_of(args: Sequence[Any], options: Mapping[str, Any]) -> torch.Size:
    """Return rows and tokens of what a backbone is called with: ids, or embeddings in their place."""
    inputs = (*args, options.get("input_ids"), options.get("inputs_embeds"))
    given: torch.Tensor = next(part for part in inputs if part is not None)
    return given.shape[:2]

"""What adapters that change attention share: they take the place of a model's own, and watch what enters its backbone."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from gym_core import GymError


def attend_by(model: PreTrainedModel, name: str) -> None:
    """Set a model to an attention that is registered with transformers and takes options of its own.

    Raises GymError where the model attends in a way of its own, or hands no options on.
    """
    options = inspect.signature(model.base_model.forward).parameters.values()
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name or not any(option.kind is option.VAR_KEYWORD for option in options):
        raise GymError(
            f"{type(model).__name__} attends in a way of its own, which this adapter cannot change",
            key="adapter",
            fix="set adapter: lora",
        )


def shape_of(args: Sequence[Any], options: Mapping[str, Any]) -> torch.Size:
    """Return rows and tokens of what a backbone is called with: ids, or embeddings in their place."""
    inputs = (*args, options.get("input_ids"), options.get("inputs_embeds"))
    given: torch.Tensor = next(part for part in inputs if part is not None)
    return given.shape[:2]

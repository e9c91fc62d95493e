"""What LoHa and LoKr through peft have in common.

Their layers draw a random number in every training step, for a dropout of whole layers that is off. Nothing can be planned or
compiled past that, so they are kept out of training mode, in which they do nothing else.
"""

from __future__ import annotations

from types import MethodType
from typing import TypeVar

from peft.tuners.lycoris_utils import LycorisLayer
from torch import nn
from transformers import PreTrainedModel

from gym_adapters.config.base import PeftOptions
from gym_adapters.peft_base import PeftAdapter

Options = TypeVar("Options", bound=PeftOptions)


class LycorisAdapter(PeftAdapter[Options]):
    """A model with layers that stay in evaluation mode."""

    def __init__(self, config: Options, model: PreTrainedModel, seed: int = 0) -> None:
        """Put the layers in. Raises what `PeftAdapter` raises."""
        super().__init__(config, model, seed)
        for layer in model.modules():
            if isinstance(layer, LycorisLayer):
                layer.eval().train = MethodType(_stay, layer)  # type: ignore[method-assign]


def _stay(layer: nn.Module, mode: bool = True) -> nn.Module:
    """Stand for `nn.Module.train` where that is to do nothing."""
    return layer

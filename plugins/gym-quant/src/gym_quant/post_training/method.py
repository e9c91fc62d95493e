"""What a quantizer of finished models is to the engine: it is shown a decoder layer and returns codes for its weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from gym_quant.config.base import PostTraining
from gym_quant.config.stored import Scheme
from gym_quant.post_training.grid import Codes

Options = TypeVar("Options", bound=PostTraining)


@dataclass(frozen=True)
class Layer:
    """A copy of one decoder layer in fp32, which may be changed, and what the calibration samples make of it."""

    module: nn.Module
    linears: Mapping[str, nn.Linear]  #: those to quantize, by the names of their weights in the model
    schemes: Mapping[str, Scheme]  #: of each, fitted to its columns
    dtype: torch.dtype  #: number format of the model, and so of scales
    moments: Mapping[str, Tensor] = field(default_factory=dict)
    """Mean of x x^T `[in, in]` over the inputs of each weight; empty where there are no data."""


class Method(ABC, Generic[Options]):
    """Chooses codes. Subclass it, and name it as the `method` of a `gym_quant.config.base.PostTraining`."""

    def __init__(self, config: Options) -> None:
        """Keep the options."""
        self.config = config

    @abstractmethod
    def quantize(self, layer: Layer) -> dict[str, Codes]:
        """Return the codes of each weight of `layer.linears`.

        What else it changes in `layer.module` is written as it then is; the weights themselves are replaced by what their
        codes stand for.
        """

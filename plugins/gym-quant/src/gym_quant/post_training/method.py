"""What a quantizer of finished models is to the engine: it is shown a decoder layer and returns codes for its weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from gym_quant.config.base import PostTraining
from gym_quant.config.stored_layout import Scheme
from gym_quant.post_training.grid import Codes

Options = TypeVar("Options", bound=PostTraining)


class Inputs:
    """What is known of the inputs of a weight."""

    def __init__(self, size: int) -> None:
        """Begin with none."""
        self.moments = torch.zeros(size, size)  #: sum, then mean, of x x^T `[in, in]`
        self.magnitudes = torch.zeros(size)  #: sum, then mean, of |x| `[in]`
        self.count = 0.0  #: of inputs, or the sum of their weights

    def add(self, inputs: Tensor, weights: Tensor | None = None) -> None:
        """Take inputs `[n, in]` in, each as often as its weight `[n]` says; without: once."""
        weighted = inputs if weights is None else inputs * weights[:, None]
        self.moments.addmm_(weighted.T, inputs)
        self.magnitudes += weighted.abs().sum(0)
        self.count += len(inputs) if weights is None else float(weights.sum())

    def divide(self, scale: Tensor) -> None:
        """Take it that inputs are now divided by a scale `[in]`."""
        self.moments /= torch.outer(scale, scale)
        self.magnitudes /= scale

    def averaged(self) -> Inputs:
        """Turn sums into means."""
        self.moments /= self.count or 1.0
        self.magnitudes /= self.count or 1.0
        return self


@dataclass(frozen=True)
class Layer:
    """A copy of one decoder layer in fp32, which may be changed, and what the calibration samples make of it."""

    module: nn.Module
    linears: Mapping[str, nn.Linear]  #: those to quantize, by the names of their weights in the model
    schemes: Mapping[str, Scheme]  #: of each, fitted to its columns
    dtype: torch.dtype  #: number format of the model, and so of scales
    inputs: dict[str, Inputs] = field(default_factory=dict)
    """Of each weight; one object for weights that read the same tensor. Empty where there are no data."""
    outputs: Callable[[], Tensor] = lambda: torch.empty(0)
    """Computes what the layer as it is now makes of the first calibration samples, `[tokens, dim]`."""

    def together(self) -> list[list[str]]:
        """Return the names of the weights, those that read the same inputs in one list."""
        groups: dict[int, list[str]] = {}
        for name in self.linears:
            groups.setdefault(id(self.inputs.get(name, name)), []).append(name)
        return list(groups.values())


class Method(ABC, Generic[Options]):
    """Chooses codes. Subclass it, and name it as the `method` of a `gym_quant.config.base.PostTraining`."""

    def __init__(self, config: Options) -> None:
        """Keep the options."""
        self.config = config

    def token_weights(self, states: Tensor, predicts: Tensor) -> Tensor | None:
        """Return how much the inputs of tokens count, `[n]`; None, the default: all the same.

        `states` `[n, dim]` are what the decoder layer makes of them; `predicts` `[n]` says which are followed by a token that
        training predicts.
        """
        return None

    def schemes(self, schemes: Mapping[str, Scheme], layers: Callable[[], Iterator[Layer]]) -> Mapping[str, Scheme]:
        """Return how each weight is to be written, of a model that is not quantized yet; by default as the options say.

        `layers` yields the decoder layers in turn, each to be left as it was.
        """
        return schemes

    @abstractmethod
    def quantize(self, layer: Layer) -> dict[str, Codes]:
        """Return the codes of each weight of `layer.linears`.

        What else it changes in `layer.module` is written as it then is. The weights themselves are left as what the codes are to
        stand for, and then replaced by what these do; `layer.inputs` are left as the inputs of those.
        """

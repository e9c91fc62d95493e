"""What a format is that models come quantized in: which tensors of a file stand for a weight, and what weight they stand for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from gym_core import GymError
from gym_torch.quantization.weight_codec import WeightCodec


class StoredFormat(WeightCodec):
    """A codec that decodes what files hold and encodes nothing."""

    tensors: ClassVar[tuple[str, ...]] = ()
    """What stands for a weight, by the end of its name, as far as a file has it; the first is always there. In `stored` they have
    underscores for dots."""

    reads: ClassVar[str] = ""
    """What kinds of it are read, for people."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Keep the `quantization_config` of the model."""
        self.options = options

    @classmethod
    def unknown(cls, options: Mapping[str, Any]) -> str:
        """Return what in a `quantization_config` makes the weights others than those that are read; empty where nothing does."""
        return ""

    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        """Raise GymError: what was made with data is not made again."""
        raise GymError(
            "the base came quantized, and its weights cannot be rounded anew",
            key="adapter",
            fix="set adapter: lora, or name the model that it was made of under `quantization`",
        )

    @abstractmethod
    def shape(self, stored: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape `[out, in]` of the weight that tensors stand for; they may have no data, but for `weight_shape`."""


def odd(options: Mapping[str, Any], read: Mapping[str, tuple[Any, ...]]) -> str:
    """Return the first option that has another value than those that are read, with it; empty where all have."""
    return next((f"{key} {options.get(key)}" for key, values in read.items() if options.get(key) not in values), "")

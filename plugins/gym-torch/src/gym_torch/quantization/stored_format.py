"""Base of the formats of quantized checkpoints: which tensors store a weight, and how they are decoded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from gym_core import GymError
from gym_torch.quantization.weight_codec import WeightCodec

#: Ends of names of what inputs, outputs, keys and values are scaled by.
SCALES = (
    "input_scale", "input_zero_point", "activation_scale", "output_scale", "output_zero_point", "q_scale", "k_scale", "v_scale",
    "k_zero_point", "v_zero_point", "kv_scale",
)  # fmt: skip


class StoredFormat(WeightCodec):
    """A codec that decodes stored tensors and encodes nothing."""

    tensors: ClassVar[tuple[str, ...]] = ()
    """What stands for a weight, by the end of its name, as far as a file has it; the first is always there. In `stored` they have
    underscores for dots."""

    marks: ClassVar[tuple[str, ...]] = ()
    """Those of them of which one is always there, where that need not be the first."""

    unused: ClassVar[tuple[str, ...]] = ()
    """Ends of names of what inputs, outputs and caches are scaled by, which say nothing of a weight."""

    reads: ClassVar[str] = ""
    """What kinds of it are read, for people."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Keep the `quantization_config` of the model."""
        self.options = options

    @classmethod
    def unknown(cls, options: Mapping[str, Any]) -> str:
        """Return the option of a `quantization_config` that is not supported; empty where all are."""
        return ""

    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        """Raise GymError: such weights need calibration data, and are only read."""
        raise GymError(
            "the base came quantized, and its weights cannot be rounded anew",
            key="adapter",
            fix="set adapter: lora, or name the model that it was made of under `quantization`",
        )

    @abstractmethod
    def shape(self, stored: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape `[out, in]` of the decoded weight; tensors may be without data, except `weight_shape`."""


def odd(options: Mapping[str, Any], read: Mapping[str, tuple[Any, ...]]) -> str:
    """Return the first option with a value that is not supported, as `option=value`; empty where there is none."""
    return next((f"{key} {options.get(key)}" for key, values in read.items() if options.get(key) not in values), "")

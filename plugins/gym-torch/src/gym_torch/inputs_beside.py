"""What a model is given beside tokens, such as images: of samples that may have more, and of pieces that they are laid out in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Inputs = Mapping[str, npt.NDArray[Any]]  #: by the names of the model's `forward`


@runtime_checkable
class WithInputs(Protocol):
    """A sample that may have more than tokens for the model, such as images; it is computed by itself."""

    @property
    def inputs_key(self) -> str:
        """What is equal where the model is given the same beside the same tokens; empty where that is nothing."""
        ...

    def model_inputs(self, tokens: npt.NDArray[np.int32] | None = None, /) -> Inputs:
        """Return what the model is given beside its tokens, or beside those of a row that ends with it or with a part of it."""
        ...


def no_inputs(tokens: npt.NDArray[np.int32] | None = None, /) -> Inputs:
    """Return nothing, which a sample of text has beside its tokens."""
    return {}


def inputs_of(sample: object) -> tuple[Callable[..., Inputs], str]:
    """Return `model_inputs` and `inputs_key` of a sample; `no_inputs` of one of text."""
    if isinstance(sample, WithInputs) and sample.inputs_key:
        return sample.model_inputs, sample.inputs_key
    return no_inputs, ""

"""What a reference said of answers, found again by their tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gym_preference.answers import Answered


class Kept:
    """Log-probabilities of the trained tokens of answers, by `key`."""

    def __init__(self, log_probs: Mapping[bytes, npt.NDArray[np.float32]]) -> None:
        """Take them."""
        self.log_probs = log_probs

    def of(self, answered: Answered) -> Tensor:
        """Return those of the answers to one prompt, one answer after another: `[n]` fp32."""
        return torch.from_numpy(self.log_probs[key(answered)])


def key(answered: Answered) -> bytes:
    """Return 16 bytes that are equal for equal tokens of which the same are learnt."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (answered.prompt, *(array for each in answered.answers for array in (each.tokens, each.trained))):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.digest()

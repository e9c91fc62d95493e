"""Changes as whole numbers of 32 bits, so that sums are exact and wrap around nowhere."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gym_core import GymError
from gym_deltasoup.secure.masks import Words


def step(clip: float, members: int) -> float:
    """Return what one of the whole numbers stands for, where each of the members has a norm of `clip` at most."""
    return clip * members / (2**31 - 1 - members)


def encoded(change: Tensor, clip: float, members: int) -> Words:
    """Return a change `[coordinates]`, cut to a norm, as whole numbers modulo 2^32. Raises GymError where it is not finite."""
    values = change.double()
    length = float(values.norm())
    if not length < float("inf"):
        raise GymError("the change holds numbers that are not finite", key="change")
    values = values * min(1.0, clip / max(length, 1e-300))
    return (values / step(clip, members)).round().long().numpy().astype(np.uint32)


def decoded(total: Words, clip: float, members: int) -> Tensor:
    """Return the sum that whole numbers stand for: fp64."""
    return torch.from_numpy(total.astype(np.int32).astype(np.float64)) * step(clip, members)

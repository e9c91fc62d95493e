"""Gradients of float64 formulas by central differences, for oracles that share no code with what they check."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def gradient(formula: Callable[[Array], float], at: Array, step: float = 1e-6) -> Array:
    """Return the derivatives of a number by every entry of `at`."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        shifted = at.copy()
        shifted[place] = at[place] + step
        above = formula(shifted)
        shifted[place] = at[place] - step
        found[place] = (above - formula(shifted)) / (2 * step)
    return found

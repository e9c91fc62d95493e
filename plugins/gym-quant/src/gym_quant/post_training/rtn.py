"""Round to nearest."""

from __future__ import annotations

from gym_quant.config.rtn import RTN
from gym_quant.post_training.grid import Codes, Grid
from gym_quant.post_training.method import Layer, Method


class RoundToNearest(Method[RTN]):
    """Rounds each weight by itself."""

    def quantize(self, layer: Layer) -> dict[str, Codes]:
        """Return the nearest codes of each weight."""
        return {
            name: Grid.of(linear.weight, layer.schemes[name], layer.dtype).codes(linear.weight)
            for name, linear in layer.linears.items()
        }

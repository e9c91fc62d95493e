"""Mixed precision: bits for each layer, where fewer cost least within a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gym_core import GymError
from gym_core.component import construct
from gym_quant.config.gptq import GPTQ
from gym_quant.config.mixed import Mixed
from gym_quant.config.stored_layout import Scheme, data_bytes
from gym_quant.post_training.grid import Codes, Grid
from gym_quant.post_training.method import Layer, Method
from gym_torch.checkpoints.weight_shards import CODES

UNITS = 10000  #: of a budget, in which sizes are counted


class MixedPrecision(Method[Mixed]):
    """Measures what bits cost, chooses, and has another method round."""

    def __init__(self, config: Mixed) -> None:
        """Build the method that rounds."""
        super().__init__(config)
        inner = config.quantizer or GPTQ()
        self.inner: Method[Any] = construct(inner.method, inner)

    def token_weights(self, states: Tensor, predicts: Tensor) -> Tensor | None:
        """Return what the other method says."""
        return self.inner.token_weights(states, predicts)

    def schemes(self, schemes: Mapping[str, Scheme], layers: Callable[[], Iterator[Layer]]) -> Mapping[str, Scheme]:
        """Return the schemes with the least sum of costs within the budget. Raises GymError where the fewest bits exceed it."""
        blocks: list[list[str]] = []
        costs: list[list[float]] = []
        sizes: list[list[float]] = []
        numbers = 0
        for layer in layers():
            wanted = layer.outputs()
            for names in layer.together():
                blocks.append(names)
                costs.append([_cost(layer, names, bits, wanted) for bits in self.config.choices])
                sizes.append([_bits(layer, names, bits) for bits in self.config.choices])
                numbers += sum(layer.linears[name].weight.numel() for name in names)
        budget = self.config.bits_per_weight * numbers
        chosen = cheapest(costs, sizes, budget)
        if chosen is None:
            least = sum(map(min, sizes)) / numbers
            raise GymError(
                f"the fewest bits take {least:.2f} a weight with their scales, above {self.config.bits_per_weight:g}",
                key="quantization.bits_per_weight",
                fix="raise it, choose from fewer bits, or make groups larger",
            )
        return {
            name: schemes[name]._replace(bits=self.config.choices[choice])
            for names, choice in zip(blocks, chosen, strict=True)
            for name in names
        }

    def quantize(self, layer: Layer) -> dict[str, Codes]:
        """Return what the other method makes of the layer."""
        return self.inner.quantize(layer)


def cheapest(costs: Sequence[Sequence[float]], sizes: Sequence[Sequence[float]], budget: float) -> list[int] | None:
    """Return a choice for each block with the least sum of costs among those whose sizes sum up to the budget at most.

    Sizes, which are whole numbers, count beyond the smallest of each block: exactly where the budget leaves up to ten thousand,
    else in ten-thousandths of what it leaves, rounded up. None where there is none.
    """
    spare = budget - sum(map(min, sizes))
    if spare < 0:
        return None
    unit = max(spare / UNITS, 1.0)
    units = int(spare / unit + 1e-9)
    best = np.zeros(units + 1)  # least cost of the blocks so far within each number of units
    taken = np.zeros((len(costs), units + 1), dtype=np.int64)
    steps = [[int(np.ceil((size - min(each)) / unit - 1e-9)) for size in each] for each in sizes]
    for block, (cost, step) in enumerate(zip(costs, steps, strict=True)):
        options = np.full((len(cost), units + 1), np.inf)
        for choice, (price, size) in enumerate(zip(cost, step, strict=True)):
            if size <= units:
                options[choice, size:] = best[: units + 1 - size] + price
        taken[block], best = options.argmin(0), options.min(0)
    left, chosen = units, []
    for block in reversed(range(len(costs))):
        choice = int(taken[block, left])
        chosen.append(choice)
        left -= steps[block][choice]
    return chosen[::-1]


def _cost(layer: Layer, names: Sequence[str], bits: int, wanted: torch.Tensor) -> float:
    """Return how much the outputs of a layer change when these weights are rounded, relative and squared."""
    before = {name: layer.linears[name].weight.data for name in names}
    for name, weight in before.items():
        grid = Grid.of(weight, layer.schemes[name]._replace(bits=bits), layer.dtype)
        layer.linears[name].weight.data = grid.codes(weight).weight().float()
    changed = layer.outputs()
    for name, weight in before.items():
        layer.linears[name].weight.data = weight
    return float(((changed - wanted).norm() / wanted.norm()) ** 2)


def _bits(layer: Layer, names: Sequence[str], bits: int) -> float:
    """Return the bits that these weights take in files."""
    dtype = CODES[layer.dtype]
    shapes = {name: tuple(layer.linears[name].weight.shape) for name in names}
    return 8.0 * sum(
        data_bytes(layer.schemes[name]._replace(bits=bits).stored(name, shape, dtype)) for name, shape in shapes.items()
    )

"""GPTQ (arXiv:2210.17323): columns are rounded in turn, and those that are left make up for the error."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_core import GymError
from gym_quant.config.gptq import GPTQ
from gym_quant.config.stored_layout import Scheme
from gym_quant.post_training.grid import Codes, Grid
from gym_quant.post_training.method import Layer, Method

BLOCK = 128  #: columns whose updates of later ones are done at once


class OptimalRounding(Method[GPTQ]):
    """Rounds each weight with the second moments of its inputs."""

    def quantize(self, layer: Layer) -> dict[str, Codes]:
        """Return codes for each weight. Raises GymError where the inputs say nothing that can be used."""
        found = {}
        for name, linear in layer.linears.items():
            factor, order = cholesky(layer.inputs[name].moments, self.config.damp_percent, self.config.desc_act, name)
            grid = None
            if self.config.desc_act or not layer.schemes[name].group:
                grid = Grid.of(linear.weight, layer.schemes[name], layer.dtype)
            found[name] = rounded(linear.weight, factor, order, layer.schemes[name], layer.dtype, grid)
        return found


def cholesky(moments: Tensor, damp: float, ordered: bool, name: str = "") -> tuple[Tensor, Tensor]:
    """Return the upper Cholesky factor `[in, in]` of the inverse of the damped second moments, and the order of the columns.

    The order is by falling diagonal where `ordered`; the factor is in that order. Inputs that are never other than 0 count as
    the mean of the others, and touch no other column.
    """
    diagonal = moments.diagonal()
    mean = float(diagonal[diagonal > 0].mean()) if (diagonal > 0).any() else 1.0
    damped = moments + torch.diag(torch.where(diagonal > 0, damp * mean, mean))
    order = torch.argsort(diagonal, descending=True, stable=True) if ordered else torch.arange(len(diagonal))
    lower, wrong = torch.linalg.cholesky_ex(damped[order][:, order])
    factor, still = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
    if int(wrong) or int(still) or not factor.isfinite().all():
        raise GymError(
            f"the inputs of {name} depend on each other too closely", key="quantization.damp_percent", fix="raise it"
        )
    return factor, order


def rounded(
    weight: Tensor, factor: Tensor, order: Tensor, scheme: Scheme, dtype: torch.dtype, grid: Grid | None
) -> Codes:
    """Return the codes of a weight `[rows, columns]`, its columns rounded in this order.

    Without a grid that of each group is found when its turn comes, of what its columns have become; `order` is then rising.
    """
    columns = weight.shape[1]
    left = weight.float()[:, order]  # [rows, columns], in the order of rounding
    codes = torch.empty_like(left)
    size = scheme.group or columns
    block = size if grid is None else BLOCK
    grids: list[Grid] = []
    for begin in range(0, columns, block):
        end = min(begin + block, columns)
        here, errors = left[:, begin:end], torch.zeros(len(left), end - begin)
        own = grid or Grid.of(here, scheme._replace(group=0), dtype)
        grids += [] if grid else [own]
        for place in range(begin, end):
            column = left[:, place : place + 1]
            group = int(order[place]) // size if grid else 0
            codes[:, place : place + 1] = code = own.nearest(column, group)
            error = (column - own.numbers(code, group).float()) / factor[place, place]
            left[:, place:end] -= error * factor[place, place:end]
            errors[:, place - begin : place - begin + 1] = error
        left[:, end:] -= errors @ factor[begin:end, end:]
    found = torch.empty_like(codes, dtype=torch.int8)
    found[:, order] = codes.to(torch.int8)
    if grid is None:
        zeros = [each.zero for each in grids if each.zero is not None]
        return Codes(
            scheme, found, torch.cat([each.scale for each in grids], 1), torch.cat(zeros, 1) if zeros else None
        )
    return Codes(scheme, found, grid.scale, grid.zero)

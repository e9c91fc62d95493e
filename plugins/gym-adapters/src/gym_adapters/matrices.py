"""Weights of layers, and what low-rank updates make of them."""

from __future__ import annotations

from typing import cast

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor

from gym_adapters.tuned import check_floating
from gym_core import GymError


def factors(matrix: Tensor, rank: int, scaling: float, iterations: int | None = None) -> tuple[Tensor, Tensor]:
    """Return A `[rank, in]` and B `[out, rank]` with `scaling B A` the best approximation of a matrix of that rank.

    With `iterations` it is found by as many power iterations (arXiv:0909.4061, section 4.4), else exactly.
    """
    if iterations:  # with some directions to spare, without which the last ones are poor
        u, s, v = torch.svd_lowrank(matrix, min(rank + 8, *matrix.shape), iterations)
    else:
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        v = vh.T
    root = (s[:rank] / scaling).sqrt()
    return root[:, None] * v[:, :rank].T, u[:, :rank] * root


def weight_of(name: str, layer: LoraLayer, rank: int) -> Tensor:
    """Return the weight `[out, in]` of the layer underneath in fp32; raise GymError where it is quantized or has no such rank."""
    check_floating(name, layer.get_base_layer(), "taken apart")
    weight = cast(Tensor, layer.get_base_layer().weight).detach().float()
    if rank > min(weight.shape):
        raise GymError(f"{name} has no rank of {rank}: it is {weight.shape[0]} x {weight.shape[1]}", key="adapter.rank")
    return weight

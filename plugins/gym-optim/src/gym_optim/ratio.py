"""BAdam over a share of every parameter in place of whole layers: the ratio mode of the code of arXiv:2404.02827.

Which numbers work follows from a seed, the parameter and the number of steps, so they are not stored.
"""

from __future__ import annotations

from hashlib import blake2b
from math import ceil
from typing import Any, Literal

import torch
from torch import Tensor

from gym_optim.base import EachParameter, Parameters, State, adam_direction

Mask = Literal["adjacent", "scatter"]


class BAdamRatio(EachParameter):
    """AdamW on `ratio` of the numbers of each parameter, others every `interval` steps, which begin without moments."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        ratio: float = 0.05,
        mask: Mask = "adjacent",
        interval: int = 50,
        seed: int = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Hold parameters; `mask` says whether the numbers that work stand side by side or anywhere, the rest is AdamW's."""
        adam = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        super().__init__(params, adam | {"ratio": ratio, "mask": mask, "interval": interval, "seed": seed})
        every = (parameter for group in self.param_groups for parameter in group["params"])
        self._numbers: dict[Tensor, int] = {parameter: number for number, parameter in enumerate(every)}

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step."""
        done = state.get("done", 0)
        if done % group["interval"] == 0:
            state.clear()
        places = working(parameter, group, f"{group['seed']}/{self._numbers[parameter]}/{done // group['interval']}")
        direction = adam_direction(gradient.reshape(-1)[places], state, group)
        kept = parameter.reshape(-1)[places] * (1 - group["lr"] * group["weight_decay"])
        parameter.view(-1)[places] = kept - group["lr"] * direction
        state["done"] = done + 1


def working(parameter: Tensor, group: dict[str, Any], seed: str) -> slice | Tensor:
    """Return which of the numbers of a parameter work."""
    count, total = ceil(group["ratio"] * parameter.numel()), parameter.numel()
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(blake2b(seed.encode(), digest_size=8).digest()) >> 1)
    if group["mask"] == "scatter":
        return torch.randperm(total, generator=generator)[:count].sort().values.to(parameter.device)
    start = int(torch.randint(total - count + 1, (), generator=generator))
    return slice(start, start + count)

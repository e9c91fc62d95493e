"""8-bit AdamW of bitsandbytes whose state CUDA moves between the memories of machine and GPU (arXiv:2305.14314, section 3)."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import torch

from gym_core import GymError
from gym_optim import config
from gym_optim.base import Parameters, as_groups, checked_options, takes_options


@takes_options(config.PagedAdamW8bit)
def paged_adamw_8bit(params: Parameters, lr: float = 1e-3, **options: Any) -> torch.optim.Optimizer:
    """Return the optimizer over parameters on a GPU.

    Raises ValueError for an option out of range, and GymError where there is no CUDA, or no bitsandbytes.
    """
    given = {"lr": lr, **config.PagedAdamW8bit.torch_options(options)}
    checked_options(config.PagedAdamW8bit, given)
    if not torch.cuda.is_available():
        raise GymError(
            "paged state lies in memory that CUDA shares with the machine, and there is no CUDA here",
            key="optimizer",
            fix="set optimizer: adamw_8bit, which runs anywhere",
        )
    if find_spec("bitsandbytes") is None:
        raise GymError("paged state comes with bitsandbytes", key="optimizer", fix="pip install 'gym-optim[paged]'")
    made: torch.optim.Optimizer = importlib.import_module("bitsandbytes").optim.PagedAdamW8bit(
        as_groups(params), min_8bit_size=given.pop("min_8bit_size"), **given
    )
    return made

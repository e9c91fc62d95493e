"""Adam's moments: a step of torch's fused AdamW, and the direction alone, for rules that project it."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from gym_optim.base import State, compute_dtype, update_in_fp32


def adamw_step(parameters: Iterable[Tensor], states: MutableMapping[Any, State], group: dict[str, Any]) -> None:
    """Take a step of torch's fused AdamW, with the state that `torch.optim.AdamW` has, in fp32 or wider."""
    exact = []
    for parameter in parameters:
        state, dtype = states[parameter], compute_dtype(parameter.dtype)
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter, dtype=dtype)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=dtype)
        if parameter.dtype == dtype:
            assert parameter.grad is not None
            exact.append((parameter, parameter.grad, state))
        else:  # one at a time, so that no more than one is held in fp32
            update_in_fp32(
                lambda weight, gradient, state, group: _fused([(weight, gradient, state)], group),
                parameter,
                state,
                group,
            )
    if exact:
        _fused(exact, group)


def _fused(ready: list[tuple[Tensor, Tensor, State]], group: dict[str, Any]) -> None:
    beta1, beta2 = group["betas"]
    adamw(
        [weight for weight, _, _ in ready],
        [gradient for _, gradient, _ in ready],
        [state["exp_avg"] for _, _, state in ready],
        [state["exp_avg_sq"] for _, _, state in ready],
        [],
        [state["step"] for _, _, state in ready],
        fused=True,
        amsgrad=False,
        maximize=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
    )


def adam_direction(gradient: Tensor, state: State, group: dict[str, Any]) -> Tensor:
    """Return Adam's direction for a gradient of any shape, and keep its moments in `state`."""
    if "step" not in state:
        state |= {"step": 0, "exp_avg": torch.zeros_like(gradient), "exp_avg_sq": torch.zeros_like(gradient)}
    state["step"] += 1
    beta1, beta2 = group["betas"]
    state["exp_avg"].lerp_(gradient, 1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    spread = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
    return state["exp_avg"] / spread.mul_(1 - beta1 ** state["step"])

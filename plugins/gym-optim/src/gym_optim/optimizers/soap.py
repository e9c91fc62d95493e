"""SOAP (arXiv:2409.11321): Adam in the eigenbasis of Shampoo's two averages, which is refreshed now and then."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gym_optim import config
from gym_optim.aux_adamw import WithAuxAdamW
from gym_optim.base import State


class SOAP(WithAuxAdamW):
    """Matrices inside the model are preconditioned on both sides, the rest is AdamW's. The first step only looks."""

    options = config.SOAP
    default_lr: ClassVar[float] = 3e-3

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step."""
        if not state:
            _begin(gradient, state, group)
            return
        (beta1, beta2), state["step"] = group["betas"], state["step"] + 1
        seen = _turned(gradient, state, into=True)
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(seen, seen, value=1 - beta2)
        spread = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        direction = _turned(_turned(state["exp_avg"], state, into=True) / spread, state, into=False)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction, alpha=-group["lr"] / (1 - beta1 ** state["step"]))
        for side, turned in _sides(gradient):
            if f"{side}_mean" in state:
                state[f"{side}_mean"].lerp_(turned @ turned.mT, 1 - group["shampoo_beta"])
        if state["step"] % group["precondition_frequency"] == 0:
            _refresh(state)


def _begin(gradient: Tensor, state: State, group: dict[str, Any]) -> None:
    state |= {"step": 0, "exp_avg": torch.zeros_like(gradient), "exp_avg_sq": torch.zeros_like(gradient)}
    for side, turned in _sides(gradient):
        if turned.shape[-2] <= group["max_precond_dim"]:
            state[f"{side}_mean"] = (turned @ turned.mT).mul_(1 - group["shampoo_beta"])  # of a mean that was zero
            state[f"{side}_basis"] = torch.linalg.eigh(state[f"{side}_mean"]).eigenvectors.flip(-1).contiguous()


def _sides(gradient: Tensor) -> tuple[tuple[str, Tensor], tuple[str, Tensor]]:
    """Return the gradient, [..., rows, columns], with each of its sides before the other."""
    return ("rows", gradient), ("columns", gradient.mT)


def _turned(tensor: Tensor, state: State, into: bool) -> Tensor:
    """Turn a matrix into the eigenbasis, or out of it."""
    if "rows_basis" in state:
        tensor = (state["rows_basis"].mT if into else state["rows_basis"]) @ tensor
    if "columns_basis" in state:
        tensor = tensor @ (state["columns_basis"] if into else state["columns_basis"].mT)
    return tensor


def _refresh(state: State) -> None:
    """Take a step of the power iteration towards the eigenvectors, after sorting them by what they stand for now."""
    for dim, side in ((-2, "rows"), (-1, "columns")):
        if f"{side}_basis" in state:
            mean, basis = state[f"{side}_mean"], state[f"{side}_basis"]
            order = (basis * (mean @ basis)).sum(-2).argsort(descending=True)  # [..., side]
            state["exp_avg_sq"] = state["exp_avg_sq"].take_along_dim(order.unsqueeze(-3 - dim), dim)
            # Laid out as a checkpoint brings it back: products of other strides differ in the last bit.
            state[f"{side}_basis"] = torch.linalg.qr(
                mean @ basis.take_along_dim(order.unsqueeze(-2), -1)
            ).Q.contiguous()

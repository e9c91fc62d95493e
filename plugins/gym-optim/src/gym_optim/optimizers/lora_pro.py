"""Optimizers for LoRA adapters: they know by the names peft gives which matrix is A [rank, in] and which is B [out, rank]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from gym_core import GymError
from gym_optim import config
from gym_optim.adam import adam_direction, adamw_step
from gym_optim.base import BaseOptimizer, Parameters, State, compute_dtype, evaluate_closure, named_groups


class LoRAPro(BaseOptimizer):
    """LoRA-Pro (arXiv:2407.18242, algorithm 2): A and B move so that their product moves as the full matrix would with AdamW.

    Its moments are those of the full matrix. What is not a LoRA pair is AdamW's.
    """

    options = config.LoRAPro
    default_lr: ClassVar[float] = 1e-4

    def __init__(self, params: Parameters, lr: float | None = None, **options: Any) -> None:
        """Hold named parameters.

        Raises GymError too where there is no LoRA pair, a pair has a third factor (AdaLoRA) or stands in two groups, or nobody
        says what a pair is multiplied by: neither `scaling` nor groups, as those of a model do.
        """
        scaling = options.get("scaling")
        groups = [group | ({} if scaling is None else {"scaling": scaling}) for group in named_groups(params)]
        self._pairs: dict[Tensor, Tensor] = {}  # A to B
        super().__init__(groups, lr, **options)
        if not self._pairs:
            raise GymError("LoRA-Pro finds no LoRA adapter", key="optimizer", fix="set adapter: lora")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add named parameters. Raises what `__init__` raises of them."""
        super().add_param_group(param_group)
        named = {
            name: (parameter, group["scaling"], number)
            for number, group in enumerate(self.param_groups)
            for name, parameter in zip(group["param_names"], group["params"], strict=True)
        }
        for name, (parameter, factor, own) in named.items():
            other, _, there = named.get(name.replace("lora_A", "lora_B"), (None, None, own))
            if "lora_A" in name.split(".") and other is not None and parameter.dim() == other.dim() == 2:
                self._pairs[parameter] = other
                if factor is None:
                    raise GymError(
                        f"LoRA-Pro finds no LoRA adapter of one matrix with its scaling in {name}",
                        key="optimizer",
                        fix="set adapter: lora; in a loop of your own give the model, or scaling=alpha / rank",
                    )
                if there != own:
                    raise GymError(
                        f"LoRA-Pro moves A and B together, and the B of {name} is in another group",
                        key="params",
                        fix="have both in one group: they have one learning rate",
                    )
            if "lora_E" in name.split("."):
                raise GymError("LoRA-Pro finds no LoRA adapter", key="optimizer", fix="set adapter: lora")
        self._second = {*self._pairs.values()}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every pair of which both have a gradient, and everything else that has one."""
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            ready = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in ready:
                if parameter in self._pairs and self._pairs[parameter].grad is not None:
                    self._update(parameter, self._pairs[parameter], self.state[parameter], group)
            alone = [weight for weight in ready if weight not in self._pairs and weight not in self._second]
            adamw_step(alone, self.state, group)
        return loss

    def _update(self, one: Tensor, other: Tensor, state: State, group: dict[str, Any]) -> None:
        scaling, delta = group["scaling"], group["delta"]
        assert one.grad is not None and other.grad is not None
        exact = compute_dtype(one.dtype)
        a, b = one.to(exact), other.to(exact)
        free = a.new_zeros(a.shape[0], a.shape[0])
        toward_a, toward_b = closest_directions(a, b, one.grad.to(exact), other.grad.to(exact), scaling, delta, free)
        whole = adam_direction(scaling * (b @ toward_a + toward_b @ a), state, group)  # [out, in]
        grad_a, grad_b = scaling * b.T @ whole, scaling * whole @ a.T
        toward_a, toward_b = closest_directions(a, b, grad_a, grad_b, scaling, delta)
        for held, weight, toward in ((one, a, toward_a), (other, b, toward_b)):
            held.copy_(weight.mul(1 - group["lr"] * group["weight_decay"]).sub_(toward, alpha=group["lr"]))


def closest_directions(
    a: Tensor, b: Tensor, grad_a: Tensor, grad_b: Tensor, scaling: float, delta: float, free: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the directions of A and B that move the product as close to the full gradient as they can (theorem 2.1).

    Args:
        a: [rank, in].
        b: [out, rank].
        grad_a: gradient of A.
        grad_b: gradient of B.
        scaling: what B A is multiplied by.
        delta: added to the diagonals of B^T B and A A^T.
        free: [rank, rank], which moves A and B without moving the product; by default what keeps both closest to their
            own gradients (theorem 2.2).

    """
    eye = torch.eye(a.shape[0], dtype=a.dtype, device=a.device)
    gram_a, gram_b = a @ a.T + delta * eye, b.T @ b + delta * eye
    near_a = torch.linalg.solve(gram_b, grad_a) / scaling**2
    outside = grad_b - b @ torch.linalg.solve(gram_b, b.T @ grad_b)
    near_b = torch.linalg.solve(gram_a, outside.T).T / scaling**2
    if free is None:
        free = _sylvester(gram_b, gram_a, -near_a @ a.T)
    return near_a + free @ a, near_b - b @ free


def _sylvester(left: Tensor, right: Tensor, value: Tensor) -> Tensor:
    """Solve left X + X right = value for symmetric positive matrices."""
    (one, turn), (two, back) = torch.linalg.eigh(left), torch.linalg.eigh(right)
    return turn @ ((turn.T @ value @ back) / (one[:, None] + two[None, :])) @ back.T

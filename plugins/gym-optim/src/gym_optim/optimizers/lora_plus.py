"""LoRA+ (arXiv:2402.12354): AdamW with a higher learning rate for the B of a LoRA pair than for its A."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gym_core import GymError
from gym_optim import config
from gym_optim.base import Parameters, checked_options, named_groups, takes_options
from gym_optim.optimizers.adamw import AdamW


@takes_options(config.LoRAPlus)
def lora_plus(params: Parameters, lr: float = 1e-4, **options: Any) -> AdamW:
    """Return AdamW over the groups of `lora_plus_groups`."""
    adamw = config.LoRAPlus.torch_options(options)
    groups = lora_plus_groups(params, lr, adamw.pop("lr_ratio"), adamw.pop("lr_embedding"))
    return AdamW(groups, lr, **adamw)


def lora_plus_groups(params: Parameters, lr: float, lr_ratio: float, lr_embedding: float) -> list[dict[str, Any]]:
    """Return groups in which B and vectors learn `lr_ratio` times as fast as A (LoRA+, arXiv:2402.12354), for any optimizer.

    `params` are a model, named parameters, or groups of them, which may have an `lr` of their own; `lr_embedding` is the rate of
    adapters of embeddings. Vectors, such as the lengths of DoRA, have the rate of B as in peft.

    Raises GymError where no B is among them, and ValueError for a rate out of range.
    """
    checked_options(config.LoRAPlus, {"lr": lr, "lr_ratio": lr_ratio, "lr_embedding": lr_embedding})
    made = []
    for group in named_groups(params):
        rates: dict[float, list[tuple[str, Tensor]]] = {}
        base = group.get("lr", lr)
        for name, parameter in group["params"]:
            parts = name.split(".")
            rate = base * lr_ratio if "lora_B" in parts or parameter.dim() == 1 else base
            rate = lr_embedding if {"lora_embedding_A", "lora_embedding_B"} & {*parts} else rate
            rates.setdefault(rate, []).append((name, parameter))
        made += [{**group, "params": part, "lr": rate} for rate, part in rates.items()]
    if not any("lora_B" in name.split(".") for group in made for name, _ in group["params"]):
        raise GymError("LoRA+ finds no LoRA adapter", key="optimizer", fix="set adapter: lora")
    return made

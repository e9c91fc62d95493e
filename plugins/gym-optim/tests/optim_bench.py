"""Weights, gradients and steps in float64, and the tiny model with its groups."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_optim.kinds import Optimizer
from gym_testkit.tiny import write_model


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(*shape: int, steps: int) -> list[Tensor]:
    return [random(*shape, seed=100 + step) for step in range(steps)]


def weight(*shape: int, seed: int = 0) -> nn.Parameter:
    return nn.Parameter(random(*shape, seed=seed))


def follow(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, grads: Sequence[Tensor]) -> Tensor:
    """Take a step with each gradient and return where that leads."""
    for gradient in grads:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach().clone()


def adamw(start: Tensor, grads: Sequence[Tensor], rate: float, decay: float = 0.0, **options: Any) -> Tensor:
    """Return where torch's AdamW leads."""
    parameter = nn.Parameter(start.clone())
    return follow(torch.optim.AdamW([parameter], lr=rate, weight_decay=decay, **options), parameter, grads)


def close(found: Tensor, expected: Tensor, bound: float = 1e-10) -> None:
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound)


def components() -> dict[str, type[Optimizer]]:
    """Return every optimizer of gym-optim that runs on a CPU, by its name."""
    found = {
        each.name: each.load() for each in entry_points(group="gym.optimizers") if each.value.startswith("gym_optim.")
    }
    return {name: kind for name, kind in found.items() if not kind.device}


@cache
def _saved() -> tuple[TemporaryDirectory[str], Path]:
    folder = TemporaryDirectory()
    return folder, write_model(Path(folder.name) / "model")


def tiny() -> PreTrainedModel:
    """Return the tiny Qwen3 model of two layers."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(_saved()[1], dtype=torch.float32)
    return model


def backward(model: PreTrainedModel, seed: int) -> None:
    tokens = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(seed))
    model(input_ids=tokens, labels=tokens).loss.backward()


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of all tensors of the state but scalars."""
    tensors = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return sum(tensor.nbytes for tensor in tensors if tensor.dim())

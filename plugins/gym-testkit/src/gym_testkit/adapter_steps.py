"""Steps of a model with an adapter on a fixed text, for the laws of adapters."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_torch.batch import Piece
from gym_torch.model.adapted import AdaptedModel


def copied(adapted: AdaptedModel) -> dict[str, Tensor]:
    """Return a copy of what an adapter has in checkpoints."""
    return {name: tensor.clone() for name, tensor in adapted.state().items()}


def fixed_tokens() -> Tensor:
    """Return the text, `[2, 24]`."""
    return torch.arange(48).view(2, 24) * 5 % 256


@torch.no_grad()
def logits_of(model: PreTrainedModel) -> Tensor:
    """Return what a model says of the text, `[2, 24, vocabulary]`."""
    model.eval()
    return deepcopy(model(input_ids=fixed_tokens()).logits)


def learnt_from(tokens: list[int], start: int) -> Piece:
    """Return a sample that is learnt from a token on."""
    return Piece(str(tokens[-1]), torch.tensor(tokens).int().numpy(), (torch.arange(len(tokens)) >= start).numpy())


def train_briefly(adapted: AdaptedModel) -> None:
    """Take five steps on a fixed text."""
    take_steps(adapted, optimizer_of(adapted), range(5), total=0)


def optimizer_of(adapted: AdaptedModel) -> torch.optim.Optimizer:
    """Return AdamW of what trains."""
    return torch.optim.AdamW([weight for weight in adapted.model.parameters() if weight.requires_grad], lr=0.01)


def take_steps(
    adapted: AdaptedModel, optimizer: torch.optim.Optimizer, steps: range, total: int = 10, gradients: bool = True
) -> None:
    """Take these of `total` steps and tell the adapter of each, with or without their gradients; of 0 nothing is told."""
    model = adapted.model.train()
    for step in steps:
        optimizer.zero_grad()
        loss = model(input_ids=fixed_tokens(), labels=fixed_tokens()).loss
        (loss + adapted.penalty()).backward()
        optimizer.step()
        if total:
            if not gradients:
                optimizer.zero_grad()
            adapted.after_step(step + 1, total)


def same_state(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Return whether two states are equal, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Raise AssertionError for logits that differ by more than rounding."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

"""Samples in packed rows, and their losses and gradients in any layout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from gym_torch_bench import Sample
from torch import Tensor
from transformers import PreTrainedModel

from gym_testkit import architectures
from gym_torch.model.log_probs import Head
from gym_torch.policy import Policy

Lineage = tuple[Sequence[Sample], Sequence[int | None]]


def sample(name: str, length: int, seed: int, share: float = 0.6) -> Sample:
    random = np.random.default_rng(seed)
    return Sample(
        name, random.integers(3, architectures.VOCABULARY, length).astype(np.int32), random.random(length) < share
    )


def separate() -> Lineage:
    return [sample(f"s{number}", length, number) for number, length in enumerate((13, 1, 4, 25, 9))], ()


def shared() -> Lineage:
    """Two prompts with three and two answers, and a sample with neither; one answer continues another."""
    lengths = (11, 5, 8, 1, 6, 14, 3, 9)
    parts = [sample(f"p{number}", length, 10 + number) for number, length in enumerate(lengths)]
    return parts, (None, 0, 0, 0, None, None, 5, 6)


def losses(
    model: PreTrainedModel, batch_of: Lineage, lay_out: object, head: Head | None = None
) -> tuple[Tensor, Tensor]:
    """Return the loss of each sample and the gradient of their weighted sum, flat."""
    model.zero_grad()
    batch = lay_out(*batch_of)  # type: ignore[operator]
    log_probs = Policy(model, head=head)(batch)
    each = log_probs.new_zeros(len(batch.segments)).index_add(0, batch.target_segment, -log_probs)
    (each * torch.linspace(0.5, 1.5, len(each), device=each.device)).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return each.detach(), torch.cat(gradients)


def assert_equal(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-5, atol=1e-5)
    assert float((found[1] - wanted[1]).norm() / wanted[1].norm()) < 1e-4

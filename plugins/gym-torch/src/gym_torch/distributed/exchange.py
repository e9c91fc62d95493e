"""The exchange of gradients after a step, for what torch's reducer cannot do: weights that no gradient comes to.

The reducer exchanges buckets of gradients while the backward pass still computes, and for that waits for every weight. What it is
told of unused ones (`find_unused_parameters`) it looks up in the graph of one forward pass: a step may have several, and layers
that are computed again do not show theirs. Afterwards it is known in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from accelerate import Accelerator
from torch import Tensor, nn

BUCKET = 25 * 2**20  #: bytes exchanged at a time, as torch's reducer does


def average(accelerator: Accelerator, trained: Sequence[nn.Parameter]) -> bool:
    """Average the gradients of weights over processes; return whether one came to each of them in every process.

    One that came to a weight in some processes is 0 in the others; one that came in none stays None.
    """
    came = torch.tensor([weight.grad is not None for weight in trained], dtype=torch.int32, device=accelerator.device)
    everywhere = accelerator.reduce(came, "sum").tolist()
    gradients = []
    for weight, count in zip(trained, everywhere, strict=True):
        if count:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            gradients.append(weight.grad)
    for bucket in _buckets(gradients):
        whole = torch.cat([gradient.flatten() for gradient in bucket])
        parts = accelerator.reduce(whole, "mean").split([gradient.numel() for gradient in bucket])
        for gradient, part in zip(bucket, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
    return all(count == accelerator.num_processes for count in everywhere)


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield gradients of one data type together, some megabytes at a time."""
    for _, alike in groupby(gradients, key=lambda gradient: gradient.dtype):
        bucket: list[Tensor] = []
        size = 0
        for gradient in alike:
            bucket.append(gradient)
            size += gradient.nbytes
            if size >= BUCKET:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket


def may_be_chosen(names: Sequence[str]) -> bool:
    """Whether a router may leave out weights of such names: those of modules with a number in modules with a number."""
    return any(len(numbered(name)) > 1 for name in names)


def ways(name: str) -> list[str]:
    """Return the paths of all modules around a parameter, the outermost first, and its own."""
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def numbered(name: str) -> list[str]:
    """Return those of them that have a number for a name, as in a list."""
    return [path for path in ways(name) if path.rpartition(".")[2].isdigit()]

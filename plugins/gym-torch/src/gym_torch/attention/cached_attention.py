"""Which kernel computes attention to a cache whose rows have different lengths and no padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gym_torch.kernels import decoding_kernels
from gym_torch.kernels.kernel_functions import Kept, Places, Scores, spelled
from gym_torch.kernels.kernel_trials import Choices, Work

RECORD = "cached_attention"  #: in run.json: by shape of heads, the kernel that a run took, or ""
ROWS, LONGEST = 16, 160  #: of a trial

CachedAttention = Callable[[Tensor, Tensor, Tensor, Kept, Scores], Tensor]


def chosen(heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> CachedAttention | None:
    """Return the kernel for these heads and this dtype, if a trial finds it faster; None where torch is used."""
    if not CHOICES.any():
        return None
    work, name = partial(_work, heads, kv_heads, dim, dtype), f"{heads}x{kv_heads}x{dim} {spelled(dtype)}"
    return CHOICES.choose(lambda each: each.cached_attention, name, (torch.empty(0, dtype=dtype),), work)


def places_of(
    new: Sequence[int], lengths: Sequence[int], prompts: Sequence[int] = (), prompt_lengths: Sequence[int] = ()
) -> Places:
    """Return the layout of a step: the numbers of new and of kept tokens of each row, and the prompts that rows continue.

    `prompts` has the number of the prompt of each row, -1 for none; without it no row continues one.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for row in range(len(lengths)):
        number = prompts[row] if prompts else -1
        groups.setdefault((number, row if number < 0 else 0), []).append(row)
    sizes = [len(rows) for rows in groups.values()]
    return Places(
        first=_sums(new),
        lengths=torch.tensor(lengths),
        members=torch.tensor([row for rows in groups.values() for row in rows]),
        bounds=_sums(sizes),
        prompt=torch.tensor([number for number, _ in groups]),
        prompt_lengths=torch.tensor(prompt_lengths or [0]),
    )


def _sums(counts: Sequence[int]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0)


def _work(heads: int, kv_heads: int, dim: int, dtype: torch.dtype, own: CachedAttention) -> Work:
    """Return what a trial compares: one token for each row, by the kernel, and by torch with padding and a mask."""
    draws = torch.Generator().manual_seed(0)
    rule = Scores(dim**-0.5)
    shapes = (heads, 1), (kv_heads, LONGEST), (kv_heads, LONGEST)
    query, keys, values = (torch.randn(ROWS, *shape, dim, generator=draws).to(dtype) for shape in shapes)
    lengths = [LONGEST - 1 - 5 * row for row in range(ROWS)]
    seen = (torch.arange(LONGEST) <= torch.tensor(lengths)[:, None])[:, None, None]
    fresh = [torch.stack([part[row, :, at] for row, at in enumerate(lengths)])[:, :, None] for part in (keys, values)]
    kept = Kept(keys, values, keys[:1], values[:1], places_of([1] * ROWS, lengths))

    def theirs(dtype: torch.dtype) -> Sequence[Tensor]:
        asked, known, content = (part.to(dtype) for part in (query, keys, values))
        return [scaled_dot_product_attention(asked, known, content, seen, scale=rule.scale, enable_gqa=True)]

    return (
        lambda: [own(query, fresh[0], fresh[1], kept, rule)],
        partial(theirs, dtype),
        partial(theirs, torch.float64),
    )


CHOICES = Choices(RECORD, decoding_kernels.functions)  #: of this process

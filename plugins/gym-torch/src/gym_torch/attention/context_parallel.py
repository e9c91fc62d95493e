"""Context parallelism: several processes share the tokens of a packed row, and each holds the activations of its own.

Token i of a row belongs to process i mod `size`, which spreads prompts, answers and labels evenly. Layers compute the tokens of
their own process, where no other token matters. Before attention the processes exchange queries, keys and values (all-to-all):
each gets all tokens for its share of the heads, computes attention as a single process would, and returns the results
(DeepSpeed-Ulysses, arXiv:2309.14509, section 3). Attention kernels therefore see whole rows, with segments, prefixes, windows and
caps, and know nothing of processes. The exchange only moves numbers between processes, so its gradient is the exchange in the
other direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from gym_core import GymError

KEY = "distributed.context_parallel_size"

Exchange = Callable[[Tensor], Tensor]


class ContextGroup:
    """The group of processes that share the tokens of rows. All of them get the same batches, and make every call here together.

    Each of them computes the whole loss. Gradients are those of the sum of these losses: summed over the group, the gradient of a
    weight is `size` times that of the loss.
    """

    def __init__(self, rank: int, size: int, group: dist.ProcessGroup | None = None) -> None:
        """Describe process `rank` of the `size` processes of `group`."""
        self.rank, self.size, self.group = rank, size, group
        self.active = True  #: whether rows are shared now

    @contextmanager
    def whole_rows(self) -> Iterator[None]:
        """Have every process compute whole rows in the block."""
        before, self.active = self.active, False
        try:
            yield
        finally:
            self.active = before

    def part(self, row: Tensor) -> Tensor:
        """Return the share of this process of `[1, tokens, ...]`: `[1, ceil(tokens / size), ...]`, padded with 0."""
        more = -row.shape[1] % self.size
        filled = torch.cat([row, row.new_zeros(1, more, *row.shape[2:])], 1) if more else row
        return filled[:, self.rank :: self.size].contiguous()

    def own(self, places: Tensor) -> Tensor:
        """Return the indices `[k]` of those `places` `[n]` of a row that belong to this process."""
        return (places % self.size == self.rank).nonzero().squeeze(1)

    def joined(self, found: Tensor, own: Tensor, count: int) -> Tensor:
        """Gather into `[count, ...]` in every process: each contributes `found` `[k, ...]` at the indices `own` `[k]`."""
        return self.summed(found.new_zeros(count, *found.shape[1:]).index_put((own,), found))

    def attend(self, given: tuple[Tensor, Tensor, Tensor], tokens: int, attend: Callable[..., Tensor]) -> Tensor:
        """Compute attention over a row of `tokens` from queries, keys and values of the tokens of this process.

        Args:
            given: each `[1, heads, own tokens, head_dim]`; keys and values may have fewer heads than queries.
            tokens: of the whole row.
            attend: from queries, keys and values of all tokens, and some of the heads, to `[1, heads, tokens, head_dim]`.

        Returns:
            `[1, heads, own tokens, head_dim]`.

        Raises:
            GymError: the heads cannot be shared out.

        """
        size, heads = self.size, given[0].shape[1]
        check_heads(heads, size)
        query, key, value = given
        # as many key and value heads as every process can have the same number of
        times = size // gcd(size, key.shape[1])
        if times > 1:
            key, value = (part.repeat_interleave(times, 1) for part in (key, value))
        outgoing = [self._by_process(part.transpose(1, 2)[0]) for part in (query, key, value)]
        incoming = self._by_token(self.exchanged(torch.cat(outgoing, 2)), tokens)
        widths, dims = [part.shape[2] for part in outgoing], [part.shape[3] for part in (query, key, value)]
        whole = [
            part.view(tokens, -1, dim).transpose(0, 1)[None]
            for part, dim in zip(incoming.split(widths, 1), dims, strict=True)
        ]
        found = attend(*whole)[0].transpose(0, 1).flatten(1)  # [tokens, heads of this process * dim]
        more = -tokens % size
        filled = torch.cat([found, found.new_zeros(more, found.shape[1])]) if more else found
        back = self.exchanged(filled.view(-1, size, found.shape[1]).transpose(0, 1).contiguous())
        return self._by_token(back, len(back[0]) * size).view(-1, heads, value.shape[3]).transpose(0, 1)[None]

    def _by_process(self, part: Tensor) -> Tensor:
        """Split `[own tokens, heads, dim]` by heads: `[size, own tokens, heads of one process * dim]`."""
        return part.reshape(len(part), self.size, -1).transpose(0, 1)

    def _by_token(self, parts: Tensor, tokens: int) -> Tensor:
        """Interleave `[size, n, width]` to `[tokens, width]`: the first dimension varies fastest."""
        return parts.transpose(0, 1).reshape(-1, parts.shape[2])[:tokens]

    def exchanged(self, parts: Tensor) -> Tensor:
        """All-to-all: send part i of `[size, ...]` to process i, return the received parts in order; differentiable once."""
        found: Tensor = _Collective.apply(parts, self._exchange)
        return found

    def summed(self, part: Tensor) -> Tensor:
        """All-reduce: return the sum over the processes; differentiable once."""
        found: Tensor = _Collective.apply(part, self._sum)
        return found

    def _exchange(self, parts: Tensor) -> Tensor:
        found = torch.empty_like(parts)
        dist.all_to_all_single(found, parts, group=self.group)
        return found

    def _sum(self, part: Tensor) -> Tensor:
        found = part.clone()
        dist.all_reduce(found, group=self.group)
        return found


class _Collective(torch.autograd.Function):
    """A linear map over processes that is its own transpose, as an exchange and a sum are."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, move: Exchange) -> Tensor:
        ctx.move = move
        return move(given.contiguous())

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.move(gradient.contiguous()), None


def check_heads(heads: int, size: int) -> None:
    """Raise GymError where attention heads cannot be shared among so many processes."""
    if heads % size:
        raise GymError(
            f"{size} processes cannot share {heads} attention heads evenly",
            key=KEY,
            fix=f"set it to a divisor of {heads}",
        )

"""Context parallelism: several processes share the tokens of a packed row, and each holds the activations of its own.

Token i of a row is that of process i mod `size`, so that prompts, answers and labels are shared evenly wherever they lie. All
that a layer does token by token, it does for those of its process. Before attention the processes exchange queries, keys and
values: each gets all tokens of its share of the heads, attends as if it were alone, and gives the results back
(DeepSpeed-Ulysses, arXiv:2309.14509, section 3). What attends therefore sees whole rows, with segments, prefixes, windows and
caps, and knows nothing of processes. An exchange only moves numbers from one process to another, so that its gradient is the way
back.
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
    """The processes that share rows with this one. All of them get the same batches, and call everything here together.

    The loss is computed by each of them, of the same numbers. Gradients are those of the sum of all these losses: summed over the
    group, the gradient of a weight is `size` times that of the loss.
    """

    def __init__(self, rank: int, size: int, group: dist.ProcessGroup | None = None) -> None:
        """Be process `rank` of `size`, which talk in `group`."""
        self.rank, self.size, self.group = rank, size, group
        self.active = True  #: whether rows are shared now

    @contextmanager
    def whole_rows(self) -> Iterator[None]:
        """Let every process compute whole rows for a while."""
        before, self.active = self.active, False
        try:
            yield
        finally:
            self.active = before

    def part(self, row: Tensor) -> Tensor:
        """Return what this process has of a tensor `[1, tokens, ...]`: `[1, ceil(tokens / size), ...]`, filled up with 0."""
        more = -row.shape[1] % self.size
        filled = torch.cat([row, row.new_zeros(1, more, *row.shape[2:])], 1) if more else row
        return filled[:, self.rank :: self.size].contiguous()

    def own(self, places: Tensor) -> Tensor:
        """Return the numbers of those `places` of a row `[n]` that are this process's, `[k]`."""
        return (places % self.size == self.rank).nonzero().squeeze(1)

    def joined(self, found: Tensor, own: Tensor, count: int) -> Tensor:
        """Return `[count, ...]` in every process: of each of them `found` `[k, ...]` at the numbers `own` `[k]`."""
        return self.summed(found.new_zeros(count, *found.shape[1:]).index_put((own,), found))

    def attend(self, given: tuple[Tensor, Tensor, Tensor], tokens: int, attend: Callable[..., Tensor]) -> Tensor:
        """Attend over a row of `tokens`, given queries, keys and values of this process's tokens; return the results for these.

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
        times = size // gcd(
            size, key.shape[1]
        )  # as many key and value heads as every process can have the same number of
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
        """Return `[own tokens, heads, dim]` as `[size, own tokens, heads of one process * dim]`, by who gets which heads."""
        return part.reshape(len(part), self.size, -1).transpose(0, 1)

    def _by_token(self, parts: Tensor, tokens: int) -> Tensor:
        """Return `[size, n, width]`, of which the first dimension counts fastest, as `[tokens, width]`."""
        return parts.transpose(0, 1).reshape(-1, parts.shape[2])[:tokens]

    def exchanged(self, parts: Tensor) -> Tensor:
        """Give part i of `[size, ...]` to process i and return what they give, in their order; differentiable once."""
        found: Tensor = _Collective.apply(parts, self._exchange)
        return found

    def summed(self, part: Tensor) -> Tensor:
        """Return the sum over the processes; differentiable once."""
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

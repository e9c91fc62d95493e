"""LoRA of many users in one pass: the tokens of a batch are grouped by user, and each group is given the update of its own.

For the tokens x `[tokens, in]` of one user a layer computes `W x + scaling B A x` with the A `[rank, in]` and B `[out, rank]` of
that user. `W x` is one product for all. The pairs of all users stand in one tensor a layer, a slot for each user, so neighbouring
slots with as many tokens each are one batched product. The gradients are added to tensors of the same layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gym_core import GymError
from gym_torch.model.adapted import LowRank


class Group(NamedTuple):
    """Tokens of neighbouring slots, as many of each, one slot after another."""

    slot: int  #: the first
    slots: int
    start: int  #: first token, in the batch laid flat
    tokens: int  #: of each slot


class LayerStack:
    """The pairs of one layer: a slot for each user, and a gradient beside each."""

    def __init__(self, slots: int, pair: LowRank) -> None:
        """Make room for as many pairs like this one."""
        first, second = pair.first, pair.second
        self.scaling = pair.scaling
        self.first = torch.zeros(slots, *first.shape, device=first.device)  #: A, [slots, rank, in]
        self.second = torch.zeros(slots, *second.shape, device=second.device)  #: B, [slots, out, rank]
        self.by_first, self.by_second = torch.zeros_like(self.first), torch.zeros_like(self.second)

    def halves(self, slot: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return A and B of a slot, each with its gradient, sharing memory."""
        return (self.first[slot], self.by_first[slot]), (self.second[slot], self.by_second[slot])


class GroupedLora:
    """The updates of all users beside the layers of one bare model, which stays as it is."""

    def __init__(self, model: nn.Module, pairs: Mapping[str, LowRank], slots: int) -> None:
        """Watch the layers that `pairs` name; `slots` users have room."""
        self.layers = {name: LayerStack(slots, pair) for name, pair in pairs.items()}
        self.groups: Sequence[Group] | int | None = ()
        """Whose tokens the next pass is given: groups, one slot for all of them, or nobody's (`off`)."""
        device = next(iter(self.layers.values())).first.device
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        for name, layer in self.layers.items():
            model.get_submodule(name).register_forward_hook(partial(self._add, layer))

    def give(self, tokens: Sequence[tuple[int, int]]) -> None:
        """Say whose the tokens of the passes from now on are: slots and how many tokens of each, in order."""
        found: list[Group] = []
        start = 0
        numbered = list(enumerate(tokens))
        for (_, count), run in groupby(numbered, key=lambda item: (item[1][0] - item[0], item[1][1])):
            slots = [slot for _, (slot, _) in run]
            found.append(Group(slots[0], len(slots), start, count))
            start += len(slots) * count
        self.groups = found

    @contextmanager
    def off(self) -> Iterator[None]:
        """Have the model compute what it does without any update."""
        before, self.groups = self.groups, None
        try:
            yield
        finally:
            self.groups = before

    def _add(self, layer: LayerStack, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if self.groups is None:
            return None
        tokens = inputs[0].numel() // inputs[0].shape[-1]
        groups = [Group(self.groups, 1, 0, tokens)] if isinstance(self.groups, int) else self.groups
        if sum(group.slots * group.tokens for group in groups) != tokens:
            raise GymError(f"{tokens} tokens are computed, and nobody said whose they are", where="GroupedLora")
        found: Tensor = _Updated.apply(inputs[0], output, self._anchor, layer, groups)  # type: ignore[no-untyped-call]
        return found


class _Updated(torch.autograd.Function):
    """What a layer computed, with the update of each group added; the gradients of the pairs go where their stack has them."""

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, output: Tensor, anchor: Tensor, layer: LayerStack, groups: Sequence[Group]
    ) -> Tensor:
        # The anchor needs a gradient, so that the backward pass comes here from layers whose input needs none.
        with torch.autocast(output.device.type, enabled=False):
            states, plain = given.reshape(-1, given.shape[-1]).to(output.dtype), output.reshape(-1, output.shape[-1])
            found = torch.empty_like(plain)
            inner = []
            for group in groups:
                own = _own(states, group)
                first, second = _pairs(layer.first, layer.second, group, output.dtype)
                inner.append(_product(own, first.mT))
                _added(_own(plain, group), inner[-1], second.mT, layer.scaling, out=_own(found, group))
        ctx.layer, ctx.groups = layer, groups
        ctx.save_for_backward(given, *inner)
        return found.view(output.shape)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        given, *inner = ctx.saved_tensors
        layer: LayerStack = ctx.layer
        (by_output,) = above
        with torch.autocast(by_output.device.type, enabled=False):
            flat, dtype = by_output.reshape(-1, by_output.shape[-1]), by_output.dtype
            states = given.reshape(-1, given.shape[-1]).to(dtype)
            needed: bool = ctx.needs_input_grad[0]
            by_states = torch.empty_like(states) if needed else states
            for group, hidden in zip(ctx.groups, inner, strict=True):
                own, pulled = _own(states, group), _own(flat, group)
                first, second = _pairs(layer.first, layer.second, group, dtype)
                by_hidden = _product(pulled, second).mul_(layer.scaling)
                by_first, by_second = _pairs(layer.by_first, layer.by_second, group)
                # Transposed, this product is several times faster and rounds otherwise than that of a user who trains alone.
                by_second.add_(_product(pulled.mT, hidden), alpha=layer.scaling)
                by_first.add_(_product(by_hidden.mT, own))
                if needed:
                    torch.matmul(by_hidden, first, out=_own(by_states, group))
        return (by_states.view(given.shape).to(given.dtype) if needed else None), by_output, None, None, None


def _own(rows: Tensor, group: Group) -> Tensor:
    """Return the rows of a group: `[slots, tokens, width]`, or `[tokens, width]` of one slot."""
    rows = rows[group.start : group.start + group.slots * group.tokens]
    return rows if group.slots == 1 else rows.view(group.slots, group.tokens, -1)


def _pairs(first: Tensor, second: Tensor, group: Group, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return the part of both stacks that a group has."""
    where = group.slot if group.slots == 1 else slice(group.slot, group.slot + group.slots)
    return first[where].to(dtype), second[where].to(dtype)


def _product(left: Tensor, right: Tensor) -> Tensor:
    return torch.mm(left, right) if left.dim() == 2 else torch.bmm(left, right)


def _added(to: Tensor, left: Tensor, right: Tensor, scale: float, out: Tensor) -> None:
    """Write `to + scale left right` into `out`."""
    if left.dim() == 2:
        torch.addmm(to, left, right, alpha=scale, out=out)
    else:
        torch.baddbmm(to, left, right, alpha=scale, out=out)

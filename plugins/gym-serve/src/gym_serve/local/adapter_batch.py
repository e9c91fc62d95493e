"""Low-rank adapters of many tenants in one pass: a row `x` is computed as `W x + scaling B A x` with the A and B of its own.

The pairs of the rows are gathered when rows change, and stand ready for the steps between (arXiv:2310.18547 has a kernel for it).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_core import Artifact, GymError
from gym_torch.checkpoints.base_fingerprint import base_fingerprint, check_base
from gym_torch.checkpoints.base_model import base_of
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.model.adapted import LowRank
from gym_torch.model.dropout import without_dropout

Gathered = dict[str, tuple[Tensor, Tensor]]  #: by layer, A `[rows, rank, in]` and B, scaled, `[rows, out, rank]`
_ACTIVE: ContextVar[tuple[Any, Gathered] | None] = ContextVar("adapters", default=None)


class AdapterBatch:
    """The adapters beside one model, whose weights stay as they are."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Begin without adapters."""
        self._model = model
        self._pairs: dict[Hashable, Gathered] = {}  # by key; halves without rows
        self._stacks: tuple[dict[Hashable, int], Gathered] | None = None
        self._last: tuple[tuple[Hashable, ...], Gathered] | None = None
        self._hooks: dict[str, Any] = {}
        self._turn = threading.Lock()  # adapters come and go while others compute

    @property
    def bytes(self) -> int:
        """Bytes of the pairs."""
        return sum(half.nbytes for pairs in list(self._pairs.values()) for pair in pairs.values() for half in pair)

    def add(self, key: Hashable, name: str, artifact: Artifact, base: Artifact) -> PreTrainedModel | None:
        """Read an adapter under a key of its own; return a model with it where it changes more than low-rank updates do, and
        cannot share a batch.

        Raises GymError where it is of another base.
        """
        check_base(artifact, base.path)
        own = base_of(artifact)
        if artifact.kind != "adapter" or (
            own.resolve() != base.path.resolve() and base_fingerprint(own) != base_fingerprint(base.path)
        ):
            raise GymError(
                f"`{name}` is no adapter of this base",
                where=str(artifact.path),
                fix="serve it under a name of its own, or with the model that it was trained from",
            )
        opened = open_artifact(artifact, self._model.dtype)
        without_dropout(opened.model)  # which counts in training alone
        pairs = opened.low_rank()
        if pairs is None:
            return opened.model
        for layer, pair in pairs.items():
            self._fits(artifact, layer, pair)
        like = self._model.device, self._model.dtype
        kept = {
            layer: (pair.first.detach().to(*like), (pair.second.detach() * pair.scaling).to(*like))
            for layer, pair in pairs.items()
        }
        with self._turn:
            self._pairs[key] = kept
            self._stacks = None
            for layer in kept.keys() - self._hooks.keys():
                hook = partial(self._added, layer)
                self._hooks[layer] = self._model.get_submodule(layer).register_forward_hook(hook)
        return None

    def remove(self, key: Hashable) -> None:
        """Let go of an adapter that no row has any more."""
        with self._turn:
            self._pairs.pop(key, None)
            self._stacks = self._last = None

    def _fits(self, artifact: Artifact, layer: str, pair: LowRank) -> None:
        """Raise GymError where a pair has other sizes than its layer: one of peft does not say which weights it belongs to."""
        weight = self._model.get_submodule(layer).weight
        found = (pair.second.shape[0], pair.first.shape[1])
        if (
            isinstance(weight, Tensor)
            and weight.is_floating_point()
            and weight.dim() == 2
            and tuple(weight.shape) != found
        ):
            why = f"its update of `{layer}` is for weights of {list(found)}, and those have {list(weight.shape)}"
            raise GymError(why, where=str(artifact.path), fix="serve it with the model that it was trained from")

    @contextmanager
    def computing(self, keys: list[Hashable]) -> Iterator[None]:
        """Compute row i of each pass in the block with the adapter `keys[i]`; None is the base."""
        if not any(key is not None for key in keys):
            yield
            return
        token = _ACTIVE.set((self, self._gathered(tuple(keys))))
        try:
            yield
        finally:
            _ACTIVE.reset(token)

    def close(self) -> None:
        """Give the model back as it was."""
        for hook in self._hooks.values():
            hook.remove()
        self._pairs.clear()
        self._stacks = self._last = None

    def _gathered(self, keys: tuple[Hashable, ...]) -> Gathered:
        last = self._last  # of another thread in a moment
        if last is None or last[0] != keys:
            with self._turn:
                slots, stacks = self._stacks = self._stacks or self._stacked()
            rows = torch.tensor([slots[key] for key in keys], device=self._model.device)
            last = keys, {layer: (first[rows], second[rows]) for layer, (first, second) in stacks.items()}
            self._last = last
        return last[1]

    def _stacked(self) -> tuple[dict[Hashable, int], Gathered]:
        """Return the slot of each adapter, and by layer what each slot has; slot 0 has nothing."""
        slots = {None: 0} | {key: slot for slot, key in enumerate(self._pairs, start=1)}
        found: Gathered = {}
        for layer in {layer: None for pairs in self._pairs.values() for layer in pairs}:
            there = [(slots[key], *pairs[layer]) for key, pairs in self._pairs.items() if layer in pairs]
            first = _stack([(slot, half) for slot, half, _ in there], len(slots), 0)
            found[layer] = first, _stack([(slot, half) for slot, _, half in there], len(slots), 1)
        return slots, found

    def _added(self, layer: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        active = _ACTIVE.get()
        if active is None or active[0] is not self or layer not in active[1]:  # which only a newer adapter has
            return None
        first, second = active[1][layer]
        states = inputs[0] if inputs[0].dim() == 3 else inputs[0].unflatten(0, (len(first), -1))
        added = torch.bmm(torch.bmm(states, first.mT), second.mT)
        return output + added.view_as(output)


def _stack(there: list[tuple[int, Tensor]], slots: int, dim: int) -> Tensor:
    """Return what each slot has, of the largest rank, filled up with zeros along `dim`; slots without anything are zero."""
    some = there[0][1]
    shape = list(some.shape)
    shape[dim] = max(each.shape[dim] for _, each in there)
    whole = some.new_zeros(slots, *shape)
    for slot, each in there:
        whole[slot].narrow(dim, 0, each.shape[dim]).copy_(each)
    return whole

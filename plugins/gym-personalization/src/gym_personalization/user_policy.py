"""The model as one user sees it: the shared base with the update of that user, whose parameters are its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gym_core import Artifact
from gym_personalization.grouped_lora import GroupedLora
from gym_torch.batch import Batch
from gym_torch.model.adapted import AdaptedModel, LowRank, Plain
from gym_torch.policy import Policy

HALVES = ("first", "second")  #: of a pair, in the order of `LowRank`


class UserPolicy(Policy[Any]):
    """Scores batches under the pairs in one slot; what was computed together with others is not computed again."""

    def __init__(self, shared: Policy[Any], lora: GroupedLora, slot: int) -> None:
        """Take a slot, whose values stay as they are."""
        super().__init__(shared.model, shared.precision, shared.head)
        self.lora, self.slot = lora, slot
        self._gradients: list[tuple[nn.Parameter, Tensor]] = []
        self.pairs: dict[tuple[str, str], nn.Parameter] = {}
        """A and B of each layer as parameters, by the path of the layer and which half."""
        for path, layer in lora.layers.items():
            for half, (values, gradient) in zip(HALVES, layer.halves(slot), strict=True):
                weight = nn.Parameter(values)
                self.register_parameter(f"{path}.{half}".replace(".", "/"), weight)
                self.pairs[path, half] = weight
                self._gradients.append((weight, gradient))
        self._known: dict[bool, tuple[Batch, Tensor]] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begin anew with gradients of zeros, where the backward pass adds to them."""
        for weight, gradient in self._gradients:
            weight.grad = gradient.zero_()

    def known(self, batch: Batch, log_probs: Tensor) -> None:
        """Take what was computed for a batch together with others; as the base alone says it, where that is asked now."""
        self._known[self.lora.groups is None] = batch, log_probs

    def forget(self) -> None:
        """Let go of it."""
        self._known.clear()

    def log_probs(self, batch: Batch, hidden: Tensor | None = None) -> Tensor:
        """Return the log-probabilities `[n]` of `batch.targets`, in fp32."""
        known = self._known.get(self.lora.groups is None)
        if known is not None and known[0].tokens is batch.tokens:
            return known[1]
        return super().log_probs(batch, hidden)

    def hidden(self, batch: Batch, places: Tensor | None = None) -> Tensor:
        """Return the last hidden states `[n, dim]`, computed for this user alone."""
        if self.lora.groups is not None:
            self.lora.groups = self.slot
        return super().hidden(batch, places)


class UserAdapter(AdaptedModel):
    """The adapter of one user, as the adapter of its recipe writes, reads and merges it."""

    def __init__(self, policy: UserPolicy, shell: Callable[[], AdaptedModel]) -> None:
        """Take whose it is; `shell` returns what the recipe's adapter builds beside a base of its own, to be filled."""
        self.policy, self.shell, self.model = policy, shell, policy.model

    @property
    def disable_adapter(self) -> Callable[[], AbstractContextManager[None]]:
        """What leaves the updates out for a while."""
        return self.policy.lora.off

    @torch.no_grad()
    def begin(self, built: AdaptedModel) -> None:
        """Begin with the values of what the recipe's adapter builds."""
        self._take(built)

    def state(self) -> dict[str, Tensor]:
        """Return what trains by the names of the recipe's adapter."""
        return self._filled().state()

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` returned."""
        built = self.shell()
        built.load(state)
        self._take(built)

    def save(self, path: Path, base: str, exact: bool = False) -> Artifact:
        """Write what the recipe's adapter writes."""
        return self._filled().save(path, base, exact)

    def read(self, path: Path) -> dict[str, Tensor]:
        """Return what `save` wrote."""
        return self.shell().read(path)

    def merged_weights(self) -> Plain:
        """Return the base with the update added."""
        return self._filled().merged_weights()

    def _take(self, built: AdaptedModel) -> None:
        for path, pair in _pairs(built).items():
            for half in HALVES:
                self.policy.pairs[path, half].copy_(getattr(pair, half))

    @torch.no_grad()
    def _filled(self) -> AdaptedModel:
        built = self.shell()
        for path, pair in _pairs(built).items():
            for half in HALVES:
                getattr(pair, half).copy_(self.policy.pairs[path, half])
        return built


def _pairs(built: AdaptedModel) -> Mapping[str, LowRank]:
    found = built.low_rank()
    assert found is not None  # looked at before the user was let in
    return found

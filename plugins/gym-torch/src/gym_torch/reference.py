"""Reference models: the policy before training, or another model, which score the same labels.

For a penalty on departing from it, or for preferences that are measured against it. Where an adapter trains that began as
nothing, it is the model itself with the adapter left out, and costs a forward pass but no memory. An adapter that began as
something is part of the reference, and its first values are kept for the whole run: LoftQ's in the model itself, those of
virtual tokens in files, for a second model.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_core import GymError, Recipe, Run
from gym_core.files import remove, replacing
from gym_torch.batch import Batch
from gym_torch.config import Further
from gym_torch.further_models import load_further
from gym_torch.kinds import Adapter, part
from gym_torch.model.adapted import AdaptedModel, adapt
from gym_torch.model.loading import LoadedModel
from gym_torch.policy import Policy, evaluating

START = "reference"  #: directory, in that of the run, with the first values of an adapter that begins as something


class Scorer:
    """Returns log-probabilities of the labels of a batch, without gradients and dropout."""

    def __init__(self, policy: Policy[Any], without: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Take a policy, and what to do without while it scores, such as an adapter."""
        self.policy, self.without = policy, without

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Return the log-probabilities `[n]` of `batch.targets`, in fp32."""
        with evaluating(self.policy), self.without():
            return self.policy.log_probs(batch)

    @torch.no_grad()
    def hidden(self, batch: Batch) -> Tensor:
        """Return the last hidden states `[n, dim]` that predict `batch.targets`, in the autocast of the caller."""
        with evaluating(self.policy), self.without():
            return self.policy.hidden(batch)

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """Return the logits `[n, vocabulary]` of such states, in the autocast of the caller."""
        with self.without():
            return self.policy.head(states)


def starts_unchanged(recipe: Recipe) -> bool:
    """Whether the policy equals the base model until the first step, as the adapter declares."""
    adapter = part(recipe, Adapter)
    return adapter is None or adapter.starts_unchanged


def left_out(adapted: AdaptedModel, recipe: Recipe) -> Callable[[], AbstractContextManager[None]] | None:
    """Return a context in which the policy computes what it did before training; None where that needs a second model."""
    return adapted.disable_adapter if starts_unchanged(recipe) else adapted.at_start


def keep_start(adapted: AdaptedModel, model: LoadedModel, run: Run) -> None:
    """Write the initial values of an adapter that changes the model from the start into the directory of the run."""
    if starts_unchanged(run.recipe) or adapted.at_start:  # what began as the base itself is loaded from where that lies
        return
    path = run.output / START

    def write() -> None:
        remove(path)
        with replacing(path, alone=True) as building:
            building.mkdir(parents=True)
            adapted.save(building, model.name, exact=True)

    run.ranks.agree(write)


class Reference:
    """The reference of a run: made where it is first needed, and let go of where it is needed no more.

    It is the model that a recipe names (a family, a folder or a Hub id); without a name the policy as it was before the first
    step: the base of an adapter that began as nothing, or what an adapter says that it was (`at_start`); else a second copy of
    the model as the recipe loads it, under a second copy of an adapter that began as something (`keep_start`).
    """

    def __init__(
        self, further: Further, policy: Policy[Any], adapted: AdaptedModel, model: LoadedModel, run: Run
    ) -> None:
        """Take what it is made from; nothing is loaded yet."""
        self.further, self.policy, self.adapted, self.model, self.run = further, policy, adapted, model, run
        self.needed = True  #: whether it is asked in every step
        self._scorer: Scorer | None = None

    @property
    def without(self) -> Callable[[], AbstractContextManager[None]] | None:
        """What makes the policy its own reference; None where only a second model is."""
        return left_out(self.adapted, self.run.recipe)

    def load(self) -> Scorer:
        """Return what scores, made by the first call.

        Raises GymError where the model cannot be loaded, or has another tokenizer than the one that is trained.
        """
        if self._scorer is None:
            self._scorer = self.made()
        return self._scorer

    def let_go(self) -> None:
        """Free its memory: no step asks it."""
        self.needed, self._scorer = False, None

    def __call__(self, batch: Batch) -> Tensor:
        """Return the log-probabilities `[n]` of `batch.targets`, in fp32."""
        return self.load()(batch)

    def hidden(self, batch: Batch) -> Tensor:
        """Return the last hidden states `[n, dim]` that predict `batch.targets`, in the autocast of the caller."""
        return self.load().hidden(batch)

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits `[n, vocabulary]` of such states, in the autocast of the caller."""
        return self.load().logits(states)

    def made(self) -> Scorer:
        """Return what scores, made anew."""
        policy, run = self.policy, self.run
        if self.further.path is None and self.without:
            return Scorer(policy, self.without)
        frozen = load_further(self.further, run.recipe, self.model)
        if self.further.path is None:
            if not starts_unchanged(run.recipe):
                _put_start(frozen.model, run.recipe, run.output / START)
            hold_alike(frozen.model, policy.model)
        if self.further.follows:  # what moves little by little would be rounded away
            for weight in filter(torch.is_floating_point, frozen.model.parameters()):
                weight.data = weight.data.float()
        device = next(policy.parameters()).device
        other: Policy[Any] = Policy(
            frozen.model.to(device), policy.precision, temperature=policy.head.temperature
        ).eval()
        other.context = policy.context
        return Scorer(other)


def hold_alike(copied: nn.Module, own: nn.Module) -> None:
    """Hold the weights of a copy of a model in the precision of that model, but for matrices.

    What trains is fp32: embeddings of fewer bits would have everything behind them rounded otherwise.
    """
    held = matrices(copied)
    for copy, weight in zip(copied.parameters(), own.parameters(), strict=True):
        if copy not in held:
            copy.data = copy.data.to(weight.dtype)


def matrices(model: nn.Module) -> set[nn.Parameter]:
    """Return the weights of linear layers that are not tied to embeddings: under autocast their dtype does not matter."""
    kinds = (nn.Linear, nn.Embedding)
    linear, embedded = (
        {weight for layer in model.modules() if isinstance(layer, kind) for weight in layer.parameters()}
        for kind in kinds
    )
    return linear - embedded


def _put_start(model: PreTrainedModel, recipe: Recipe, path: Path) -> None:
    """Adapt a second copy of the base, with the initial values that `keep_start` wrote."""
    if not path.is_dir():
        raise GymError(
            "the first values of the adapter, which the reference has, are gone",
            where=str(path),
            fix="bring the folder back, or start over in another `output`",
        )
    copy = adapt(model, recipe)
    copy.load(copy.read(path))
    copy.model.requires_grad_(False).eval()

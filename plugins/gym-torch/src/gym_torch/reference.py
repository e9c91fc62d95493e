"""What a policy is compared with: the model before training, or another one, scoring the same labels.

For a penalty on departing from it, or for preferences that are measured against it. Where an adapter trains, it is the model
itself with the adapter left out, and costs a forward pass but no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from gym_core import GymError, Recipe
from gym_data.tokenizer import Tokenizer
from gym_torch.adapted import Adapted
from gym_torch.backend import PATH, LoadedModel, load_frozen
from gym_torch.batch import Batch
from gym_torch.config import Transformers
from gym_torch.policy import Policy, evaluating
from gym_torch.rope import longest

KEY = "algorithm.reference_model"


class Scorer:
    """Scores the labels of a batch without a graph and without dropout."""

    def __init__(self, policy: Policy, without: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
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


def reference(policy: Policy, adapted: Adapted, model: LoadedModel, recipe: Recipe, named: str | None = None) -> Scorer:
    """Return the reference of a policy over `adapted`.

    It is the model `named` (a family, a folder or a Hub id); without a name the base of an adapter, or, where the weights of the
    model itself are trained, a second copy of `model` as `recipe` loads it.

    Raises GymError where the model cannot be loaded, or has another tokenizer than `model`.
    """
    if named is None and adapted.without:
        return Scorer(policy, adapted.without)
    own = recipe.model if isinstance(recipe.model, Transformers) else Transformers(path=str(model.path))
    config, key = (own, PATH) if named is None else (own.other(named), KEY)
    frozen = load_frozen(config, model.precision, model.layout, recipe.train.seed, longest(recipe), key)
    if Tokenizer(frozen.path).fingerprint != Tokenizer(model.path).fingerprint:
        raise GymError(
            "a reference must have the tokenizer of the model that is trained",
            where=frozen.name,
            key=KEY,
            fix="name a model of the same family",
        )
    device = next(policy.parameters()).device
    return Scorer(Policy(frozen.model.to(device), policy.bf16, temperature=policy.head.temperature).eval())

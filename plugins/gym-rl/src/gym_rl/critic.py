"""Critics: what says, before each token of an answer, how much reward is still to come.

A critic is a head on the states of the policy, or a model of its own under a head. Either is trained beside the policy.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_core import Backend, RecipeError, Run
from gym_torch.adapted import Adapted, adapt, recompute_layers
from gym_torch.backend import LoadedModel
from gym_torch.batch import Batch
from gym_torch.beside import Beside
from gym_torch.layout import hidden_states
from gym_torch.logprobs import label_log_probs
from gym_torch.policy import Policy
from gym_torch.scalar_head import FILE, ScalarHead

FOLDER = "critic"  #: of a critic that is a model of its own, in the directory of the policy


class Critic(Beside):
    """What expects."""

    @abstractmethod
    def forward(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the value before each target of a batch, `[n]` fp32; `hidden` `[n, dim]` are the policy's states there."""


class SharedCritic(Critic):
    """A head on the states of the policy, which learn from both."""

    def __init__(self, model: LoadedModel) -> None:
        """Take up the value head that lies beside the weights of the policy, or begin with an untrained one."""
        super().__init__()
        self.head = _head(model.model, model.path)

    def forward(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Apply the head."""
        values: Tensor = self.head(hidden)
        return values

    def save(self, path: Path, exact: bool = False) -> None:
        """Write the head."""
        self.head.save(path, exact)

    def restore(self, path: Path) -> None:
        """Read the head."""
        self.head.restore(path)


class SeparateCritic(Critic):
    """A model of its own under a head, adapted as the policy is."""

    def __init__(self, backend: Backend, run: Run, policy: LoadedModel) -> None:
        """Load the model, and its value head where it has one. Raises RecipeError where it does not fit the policy."""
        super().__init__()
        loaded: LoadedModel = backend.build(run=run)
        _check(loaded, policy)
        self.base = loaded.name
        self.head = _head(loaded.model, loaded.path)
        self.adapted: Adapted = adapt(loaded.model, run.recipe)
        self.model: PreTrainedModel = self.adapted.model
        if not self.model.config.get_text_config().tie_word_embeddings:
            self.model.get_output_embeddings().requires_grad_(False)  # nothing comes of its logits
        if run.recipe.train.gradient_checkpointing:
            recompute_layers(self.model)

    def forward(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Run the model and apply the head."""
        values: Tensor = self.head(hidden_states(self.model, batch))
        return values

    def save(self, path: Path, exact: bool = False) -> None:
        """Write the model, or its adapter, and the head into a folder."""
        (path / FOLDER).mkdir(exist_ok=True)
        self.adapted.save(path / FOLDER, self.base, exact)
        self.head.save(path / FOLDER, exact)

    def restore(self, path: Path) -> None:
        """Read them."""
        self.adapted.load(self.adapted.read(path / FOLDER))
        self.head.restore(path / FOLDER)


class ActorCritic(Policy):
    """A policy whose critic looks at the same batches."""

    def forward(self, batch: Batch) -> Tensor:
        """Return log-probabilities of `batch.targets` and the values before them, `[2, n]` fp32."""
        with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self.bf16):
            hidden = self.hidden(batch)
            log_probs = label_log_probs(hidden, self.head, batch.targets, self.chunk)
            values: Tensor = cast(Critic, self.beside["critic"])(batch, hidden)
        return torch.stack([log_probs, values])


def _head(model: PreTrainedModel, path: Path) -> ScalarHead:
    return ScalarHead.read(path) if (path / FILE).is_file() else ScalarHead.of(model)


def _check(critic: LoadedModel, policy: LoadedModel) -> None:
    own, asked = (each.model.config.get_text_config().vocab_size for each in (critic, policy))
    if own < asked:
        why, fix = f"knows {own:,} tokens, and the policy has {asked:,}", "name a model with the same tokenizer"
    elif critic.layout is not policy.layout:
        why = f"takes samples {critic.layout.name}, and the policy {policy.layout.name}"
        fix = "set `attention: sdpa` for both"
    else:
        return
    raise RecipeError(f"the critic `{critic.name}` {why}", key="algorithm.critic", fix=fix)

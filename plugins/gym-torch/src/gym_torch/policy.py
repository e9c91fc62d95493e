"""The model as an objective uses it: batches in, log-probabilities of labels out. It knows no losses.

Its parameters are all that a run has: those of the model, and those of what is trained beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_core import PluginError
from gym_torch.attention.context_parallel import ContextGroup
from gym_torch.auxiliary_module import AuxiliaryModule
from gym_torch.batch import Batch
from gym_torch.kernels.fused_modules import fuse
from gym_torch.kernels.linear_products import multiply
from gym_torch.kernels.shared_input_casts import share_casts
from gym_torch.model.hidden_states import hidden_states, shared_states
from gym_torch.model.linear_head import Also
from gym_torch.model.load_balancing import LoadBalancing
from gym_torch.model.log_probs import Head, head_of, label_log_probs, label_statistics, nucleus_log_probs, rows_at_once
from gym_torch.model.neftune import Noise
from gym_torch.model.nucleus import nucleus_tokens
from gym_torch.rounding import rounding

B = TypeVar("B", bound=Batch)


class Policy(nn.Module, Generic[B]):
    """A causal language model that scores the labels of a batch of a kind, in mixed precision if asked."""

    def __init__(
        self,
        model: PreTrainedModel,
        precision: str = "fp32",
        head: Head | None = None,
        temperature: float = 1.0,
        auxiliary: Mapping[str, AuxiliaryModule] | None = None,
    ) -> None:
        """Wrap a causal language model, whose matrix products run in `precision` over fp32 weights: fp32, bf16 or fp16.

        `head` is found out and checked against the model unless it is given. `temperature` divides the logits. `auxiliary`
        are the modules trained beside the model, by name.
        """
        super().__init__()
        self.model = model
        self.auxiliary = nn.ModuleDict({name: _checked(name, module) for name, module in (auxiliary or {}).items()})
        self.precision = precision
        fuse(model)
        multiply(model)
        if precision != "fp32":
            share_casts(model, head=model.get_output_embeddings())
        with rounding(model.device, precision):
            self.head = replace(head or head_of(model), temperature=temperature)
        self.chunk = rows_at_once(model.config.get_text_config().vocab_size)
        self.noise: Noise | None = None  #: on embeddings in training
        self.balance: LoadBalancing | None = None  #: of experts in training
        self.context: ContextGroup | None = None  #: the processes that share the tokens of its rows

    @property
    def auxiliary_modules(self) -> list[AuxiliaryModule]:
        """What is trained beside the model."""
        return [cast(AuxiliaryModule, module) for module in self.auxiliary.values()]

    def forward(self, batch: B) -> Tensor:
        """Return what the objective is given; here log-probabilities, see `log_probs`."""
        return self.log_probs(batch)

    def log_probs(self, batch: Batch, hidden: Tensor | None = None) -> Tensor:
        """Return the log-probabilities `[n]` of `batch.targets`, in fp32; `hidden` are their states where those are known.

        Where `batch.nucleus` is there, in the distribution over those tokens alone.
        """
        with rounding(batch.tokens.device, self.precision):
            if batch.nucleus is not None:
                states = self.hidden(batch) if hidden is None else hidden
                return nucleus_log_probs(states, self.head, batch.targets, batch.nucleus, self.chunk)
            if hidden is not None:
                return label_log_probs(hidden, self.head, batch.targets, self.chunk)
            return self.at_labels(
                batch, lambda states, targets: label_log_probs(states, self.head, targets, self.chunk)
            )

    def statistics(self, batch: Batch, also: Also) -> Tensor:
        """Return these, and below them what `also` says of the logits there, as `label_statistics` does: `[1 + k, n]`, fp32."""
        with rounding(batch.tokens.device, self.precision):
            return self.at_labels(
                batch, lambda states, targets: label_statistics(states, self.head, targets, also, self.chunk).T
            ).T

    def at_labels(self, batch: Batch, score: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return what `score` makes of states `[k, dim]` and the labels `[k]` that they predict, `[n, ...]` of a batch.

        In the autocast of the caller. Where processes share the tokens, each scores the labels at its own.
        """
        context = self.sharing
        if context is None:
            return score(self.hidden(batch), batch.targets)
        own, states = self._shared(batch, batch.target_index, context)
        return context.joined(score(states, batch.targets[own]), own, len(batch.targets))

    def nucleus(self, batch: Batch, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0) -> Tensor:
        """Return the `gym_torch.model.nucleus.drawable` tokens at each target, as `Batch.nucleus` has them."""
        with (
            evaluating(self),
            torch.no_grad(),
            rounding(batch.tokens.device, self.precision),
        ):
            return nucleus_tokens(self.hidden(batch), self.head, batch.targets, top_p, self.chunk, top_k, min_p)

    def hidden(self, batch: Batch, places: Tensor | None = None) -> Tensor:
        """Return the last hidden states `[n, dim]` at flat `places` `[n]`, by default those that predict `batch.targets`."""
        context = self.sharing
        if context is None:
            return hidden_states(self.model, batch, places, self._around)
        chosen = batch.target_index if places is None else places
        own, states = self._shared(batch, chosen, context)
        return context.joined(states, own, len(chosen))

    @property
    def sharing(self) -> ContextGroup | None:
        """The processes that share the tokens of its rows now."""
        return self.context if self.context and self.context.active else None

    def _shared(self, batch: Batch, places: Tensor, context: ContextGroup) -> tuple[Tensor, Tensor]:
        """Return which of the flat `places` are this process's, `[k]`, and their last hidden states `[k, dim]`."""
        own = context.own(places)
        return own, shared_states(self.model, batch, places[own], context, self._around)

    @contextmanager
    def _around(self, batch: Batch) -> Iterator[None]:
        """What a pass through the model in training is within."""
        with ExitStack() as stack:
            for each in (self.noise, self.balance):
                if each is not None and self.training:
                    stack.enter_context(each.on(batch))
            yield


def _checked(name: str, module: AuxiliaryModule) -> AuxiliaryModule:
    """Return what is trained beside the model. Raises PluginError where it is another kind of module."""
    if not isinstance(module, AuxiliaryModule):
        raise PluginError(
            f"`{name}` is trained beside the model, and is a {type(module).__name__}, which is no AuxiliaryModule",
            key="algorithm",
            fix="let it subclass gym_torch.auxiliary_module.AuxiliaryModule",
        )
    return module


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode in the block."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)

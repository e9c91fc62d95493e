"""Replicated training: every process has the whole model. The methods are those that a strategy provides to the loop.

`gym_torch.distributed.fsdp` overrides them for sharded models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_torch.attention.context_parallel import ContextGroup
from gym_torch.distributed import exchange
from gym_torch.distributed.optimizer_state import State, take
from gym_torch.language_part import in_language_part
from gym_torch.model.dropout import skipping
from gym_torch.policy import Policy


class Replicated:
    """The whole model in every process; gradients are averaged over processes in the last backward pass of a step, or after it
    where one does not come to every weight, as the first step tells.
    """

    context: ContextGroup | None = None  #: the processes that share the tokens of each batch with this one
    _all_come: bool | None = None
    """Whether a gradient comes to everything that trains in every step; None before the first."""

    def __init__(self, accelerator: Accelerator) -> None:
        """Use the processes that accelerate sees; one process is the simplest case."""
        self.accelerator = accelerator

    @property
    def rank(self) -> int:
        """Number of this process among those with batches of their own; processes that share batches have the same."""
        return int(self.accelerator.process_index) // self.sharing

    @property
    def world(self) -> int:
        """How many of them there are."""
        return int(self.accelerator.num_processes) // self.sharing

    @property
    def sharing(self) -> int:
        """How many processes share batches; 1 where each has its own."""
        return self.context.size if self.context else 1

    @property
    def first(self) -> bool:
        """Whether this is the first of the processes that share its batches, which speaks for all of them."""
        return int(self.accelerator.process_index) % self.sharing == 0

    def whole_rows(self) -> AbstractContextManager[None]:
        """Return the context in which each process computes whole rows, also where others share its batches."""
        return self.context.whole_rows() if self.context else nullcontext()

    def place(self, model: PreTrainedModel) -> None:
        """Bring the model to where it can first be tried out: this process's device."""
        model.to(self.accelerator.device)

    def wrap(self, policy: Policy[Any]) -> nn.Module:
        """Return what the loop calls instead of the policy; the optimizer comes later."""
        wrapped: nn.Module = self.accelerator.prepare(policy)
        return wrapped

    def backward(self, policy: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Return the context of forward and backward over one batch; `last` for the last batch of a step."""
        if last and self._all_come:
            return nullcontext()
        return self._exchanging(policy) if last else self._silent(policy)

    def _silent(self, policy: nn.Module) -> AbstractContextManager[None]:
        silent: AbstractContextManager[None] = self.accelerator.no_sync(policy)
        return silent

    @contextmanager
    def _exchanging(self, policy: nn.Module) -> Iterator[None]:
        """Exchange gradients when all are there, and see whether the backward pass may do it in the next step."""
        with self._silent(policy):
            yield
        if self.accelerator.num_processes == 1:
            return
        trained = {name: weight for name, weight in policy.named_parameters() if weight.requires_grad}
        came = exchange.average(self.accelerator, [*trained.values()])
        if self._all_come is None:
            self._all_come = (
                came and not exchange.may_be_chosen([*trained]) and not skipping(policy) and self._by_text(policy)
            )

    def _by_text(self, policy: nn.Module) -> bool:
        """Whether a gradient comes to what trains from text alone: to a vision tower it comes from images."""
        model = self.accelerator.unwrap_model(policy).model
        language = in_language_part(model)
        return all(language(name) for name, weight in model.named_parameters() if weight.requires_grad)

    def reshard(self) -> None:
        """Let go of what an evaluation left whole; here nothing is."""

    def clip(self, trained: Sequence[nn.Parameter], most: float) -> Tensor:
        """Scale the gradients down to an L2 norm of `most`, where that is not 0; return the norm before, a scalar.

        Where it is not finite they stay as they are: all times NaN, none would tell where it came from.
        """
        norm = nn.utils.get_total_norm([weight.grad for weight in trained if weight.grad is not None])
        nn.utils.clip_grads_with_norm_(trained, most or math.inf, norm.nan_to_num(nan=0.0, posinf=0.0))
        return norm

    def optimizer(self, optimizer: torch.optim.Optimizer, policy: nn.Module) -> State:
        """Return the state of the optimizer, whole in the main process; every process must ask."""
        return take(optimizer, policy, self.full)

    @contextmanager
    def whole(self, policy: nn.Module) -> Iterator[None]:
        """Have the parameters of the policy whole in the main process, on the CPU or where they are, to be read."""
        yield

    def full(self, tensor: Tensor) -> Tensor:
        """Return the whole of a tensor on the CPU; every process must ask."""
        return tensor.detach().cpu().contiguous()

    def like(self, tensor: Tensor, parameter: nn.Parameter) -> Tensor:
        """Return this process's part of a tensor, laid out as the parameter is; every process must ask."""
        return tensor.to(parameter.device)

"""How a model lies over the processes of a run, and what the loop must therefore ask for instead of doing it.

Here every process has all of it. `gym_torch.distributed.fsdp` is the other way.
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

from gym_torch.distributed.optimizer_state import State, take
from gym_torch.policy import Policy


class Replicated:
    """The whole model in every process; gradients are averaged over processes in the last backward pass of a step."""

    def __init__(self, accelerator: Accelerator) -> None:
        """Use the processes that accelerate sees; one process is the simplest case."""
        self.accelerator = accelerator

    def place(self, model: PreTrainedModel) -> None:
        """Bring the model to where it can first be tried out: this process's device."""
        model.to(self.accelerator.device)

    def wrap(self, policy: Policy[Any]) -> nn.Module:
        """Return what the loop calls instead of the policy; the optimizer comes later."""
        wrapped: nn.Module = self.accelerator.prepare(policy)
        return wrapped

    def backward(self, policy: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Return the context of forward and backward over one batch; `last` for the last batch of a step."""
        silent: AbstractContextManager[None] = nullcontext() if last else self.accelerator.no_sync(policy)
        return silent

    def clip(self, trained: Sequence[nn.Parameter], most: float) -> Tensor:
        """Scale the gradients down to an L2 norm of `most`, where that is not 0; return the norm before, a scalar."""
        return nn.utils.clip_grad_norm_(trained, most or math.inf)

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

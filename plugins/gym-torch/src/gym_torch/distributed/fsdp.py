"""Sharded training by torch's `fully_shard` (FSDP2), on a CPU and on GPUs.

accelerate is not used for it: on a CPU it would silently replicate the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from gym_core import GymError
from gym_torch.distributed.ddp import Replicated
from gym_torch.distributed.optimizer_state import State, take
from gym_torch.memory.gradient_checkpointing import recomputable
from gym_torch.model.dropout import skipping
from gym_torch.policy import Policy


class Sharded(Replicated):
    """Each process holds its part of every weight, gradient and optimizer state; a layer is whole while it computes."""

    def place(self, model: PreTrainedModel) -> None:
        """Leave it on the CPU: whole, it may not fit onto the device."""

    def wrap(self, policy: Policy[Any]) -> nn.Module:
        """Cut the policy up in place: layer by layer, then what is left.

        Raises GymError where weights are held in a format that cannot be cut, or layers are left out at random: each process
        would wait for others with the parts of another layer.
        """
        if skips := skipping(policy):
            why = f"{skips[0]} of the model is {skips[1]:g}: each process leaves out other layers, and fsdp has all do the same"
            raise GymError(why, key="distributed", fix="set distributed: ddp, or 0 in config.json of the model")
        odd = next((name for name, weight in policy.named_parameters() if not weight.is_floating_point()), None)
        if odd:
            raise GymError(f"{odd} is quantized, and fsdp cannot cut it", key="distributed", fix="set distributed: ddp")
        device = self.accelerator.device
        mesh = init_device_mesh(device.type, (self.accelerator.num_processes,))
        for layer in recomputable(policy):
            fully_shard(layer, mesh=mesh)
        fully_shard(policy, mesh=mesh)
        register_fsdp_forward_method(policy, "log_probs")  # what a `Scorer` calls
        self._policy = policy
        return policy

    def backward(self, policy: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Exchange gradients after every batch: keeping them until the last would need them whole."""
        return nullcontext()

    def reshard(self) -> None:
        """Let go of what an evaluation left whole."""
        for module in self._policy.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def clip(self, trained: Sequence[nn.Parameter], most: float) -> Tensor:
        """Clip by the norm over all shards."""
        norm = super().clip(trained, most)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def optimizer(self, optimizer: torch.optim.Optimizer, policy: nn.Module) -> State:
        """Gather the state tensor by tensor; only the main process keeps them."""
        self.reshard()
        main = self.accelerator.is_main_process
        return take(optimizer, policy, lambda tensor: self.full(tensor) if main else self.full(tensor).to("meta"))

    @contextmanager
    def whole(self, policy: nn.Module) -> Iterator[None]:
        """Put whole parameters, on the CPU, in the place of the shards, and the shards back afterwards.

        Whoever loads a state dict meanwhile fills the whole ones, and `fully_shard` is not to look for its shards there.
        """
        self.reshard()
        places = [
            (module, name, weight)
            for module in policy.modules()
            for name, weight in module._parameters.items()
            if isinstance(weight, DTensor)
        ]
        whole: dict[int, nn.Parameter] = {}
        for module, name, shard in places:
            if id(shard) not in whole:  # tied weights once
                tensor = self.full(shard)
                kept = tensor if self.accelerator.is_main_process else tensor.to("meta")
                whole[id(shard)] = nn.Parameter(kept, requires_grad=shard.requires_grad)
            module._parameters[name] = whole[id(shard)]
        hooks = [(module, module._load_state_dict_post_hooks.copy()) for module in policy.modules()]
        for module, _ in hooks:
            module._load_state_dict_post_hooks.clear()
        try:
            yield
        finally:
            for module, before in hooks:
                module._load_state_dict_post_hooks.update(before)
            for module, name, shard in places:
                module._parameters[name] = shard

    def full(self, tensor: Tensor) -> Tensor:
        """Gather the parts of a tensor."""
        return super().full(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)

    def like(self, tensor: Tensor, parameter: nn.Parameter) -> Tensor:
        """Cut a tensor as the parameter is cut."""
        if not isinstance(parameter, DTensor):
            return super().like(tensor, parameter)
        return distribute_tensor(tensor.to(parameter.device), parameter.device_mesh, parameter.placements)

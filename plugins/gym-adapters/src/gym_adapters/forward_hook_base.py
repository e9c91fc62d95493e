"""The base of adapters of our own: parameters beside those of a model, and hooks that compute with them.

The modules of the model stay what they are, so whatever looks for a linear layer or an embedding finds it, and taking the
hooks away leaves the base. It writes what plain peft loads.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from peft import PeftConfig
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from gym_adapters.lora_checkpoint import PREFIX, WEIGHTS, artifact
from gym_core import Artifact
from gym_torch.kinds import Adapter
from gym_torch.model.adapted import AdaptedModel, Plain, copy_state
from gym_torch.quantization.weights import plain_state

Options = TypeVar("Options", bound=Adapter)


class Handle(Protocol):
    """What torch gives for a hook."""

    def remove(self) -> None:
        """Take the hook away."""


class HookAdapter(AdaptedModel, Generic[Options]):
    """A model with hooks. A subclass says what trains, how it computes, and what peft calls it."""

    def __init__(self, config: Options, model: PreTrainedModel, seed: int = 0) -> None:
        """Put the adapter into `model`, in place; `seed` alone determines its first values.

        Raises what `add_parameters` raises.
        """
        self.config, self.model = config, model
        model.requires_grad_(False)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.add_parameters()
        self._handles = self.register_hooks()

    @abstractmethod
    def add_parameters(self) -> None:
        """Register what trains, in fp32, by the names that peft gives it. Raises GymError where the model does not fit."""

    @abstractmethod
    def register_hooks(self) -> list[Handle]:
        """Register the hooks."""

    @abstractmethod
    def peft_config(self) -> PeftConfig:
        """Return what peft is to read beside the weights."""

    def merge_weight(self, name: str, weight: Tensor) -> Tensor:
        """Return what a weight of the model becomes where the adapter is merged, by its name. Default: it stays."""
        return weight

    def merged_weights(self) -> Plain:
        """Return the model with what trains in its weights. Raises GymError where no weights compute the same."""
        own = {name.removeprefix(PREFIX) for name in self.state()}
        weights = (
            (name, self.merge_weight(name, weight)) for name, weight in plain_state(self.model) if name not in own
        )
        return Plain(copy.deepcopy(self.model.config), weights)

    def state(self) -> dict[str, Tensor]:
        """Return the adapter by peft's names, in fp32."""
        return {
            PREFIX + name: weight.detach() for name, weight in self.model.named_parameters() if weight.requires_grad
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the adapter back."""
        copy_state(self.state(), state)

    def save(self, path: Path, base: str, exact: bool = False) -> Artifact:
        """Write what `peft.PeftModel.from_pretrained` loads. It is small, so it stays fp32 and exact in any case."""
        path.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: weight.cpu().contiguous() for name, weight in self.state().items()}, path / WEIGHTS, {"format": "pt"}
        )
        options = self.peft_config()
        options.base_model_name_or_path, options.inference_mode = base, True
        options.save_pretrained(str(path))
        return artifact(self.config, path, base)

    def read(self, path: Path) -> dict[str, Tensor]:
        """Return the adapter of a directory that `save` wrote."""
        return load_file(path / WEIGHTS)

    @property
    def disable_adapter(self) -> Callable[[], AbstractContextManager[None]] | None:
        """What leaves the adapter out for a while."""
        return self._disabled

    @contextmanager
    def _disabled(self) -> Iterator[None]:
        for handle in self._handles:
            handle.remove()
        try:
            yield
        finally:
            self._handles = self.register_hooks()

"""One number for each hidden state of a language model: what is expected from there on, or how good a text is.

The file has the name and the keys that TRL's value head has in LLaMA-Factory, so each reads the other's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_core import GymError
from gym_torch.auxiliary_module import AuxiliaryModule
from gym_torch.model.adapted import copy_state
from gym_torch.model_files import HEAD

if TYPE_CHECKING:
    from gym_torch.model.loading import LoadedModel

FILE = HEAD
PREFIX = "v_head.summary."


class ScalarHead(AuxiliaryModule):
    """A linear map from a state to a number, computed in its own precision, fp32; all zero before it is trained."""

    def __init__(self, width: int) -> None:
        """Take the width of a hidden state."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width))
        self.bias = nn.Parameter(torch.zeros(1))

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """Return an untrained head for the states of a model."""
        return cls(model.config.get_text_config().hidden_size)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the head that `save` wrote into a directory. Raises GymError where there is none."""
        state = _read(path)
        head = cls(state["weight"].shape[1])
        head.load_state_dict(state)
        return head

    def forward(self, hidden: Tensor) -> Tensor:
        """Return a number for each state `[..., width]`, whatever precision those are in: `[...]`."""
        with torch.autocast(hidden.device.type, enabled=False):
            return nn.functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias).squeeze(-1)

    def save(self, path: Path, exact: bool = False) -> None:
        """Write `value_head.safetensors`; it is small, so it stays fp32 in any case."""
        state = {PREFIX + name: weight.detach().cpu().contiguous() for name, weight in self.named_parameters()}
        save_file(state, path / FILE, {"format": "pt"})

    def restore(self, path: Path) -> None:
        """Copy the weights back."""
        copy_state(dict(self.named_parameters()), _read(path))


def head_of(model: LoadedModel) -> ScalarHead:
    """Return the head that lies beside the weights of a model, or an untrained one."""
    return ScalarHead.read(model.path) if (model.path / FILE).is_file() else ScalarHead.of(model.model)


def freeze_lm_head(model: PreTrainedModel) -> None:
    """Freeze the language-model head, unless its weights are the input embeddings.

    Where states are looked at by a head of numbers alone it has no gradient, and processes would wait for one.
    """
    head = model.get_output_embeddings()
    if head.weight is not model.get_input_embeddings().weight:  # some configurations say nothing of ties
        head.requires_grad_(False)


def _read(path: Path) -> dict[str, Tensor]:
    if not (path / FILE).is_file():
        raise GymError(
            f"there is no {FILE}", where=str(path), fix="name the `model` directory of a run that trained one"
        )
    return {name.removeprefix(PREFIX): weight.float() for name, weight in load_file(path / FILE).items()}

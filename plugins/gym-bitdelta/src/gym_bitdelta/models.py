"""The base and the fine-tune of a delta, each read from its files once, for all who look at their weights or compute."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel

from gym_bitdelta.encoding import changed_config
from gym_core import Artifact
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.model import mapped_weights
from gym_torch.model_files import weight_files


class Models:
    """What is compared. Nobody changes the weights of `base` before the last has looked at them: `again` gives others."""

    def __init__(self, artifact: Artifact, base: Path, computing: bool) -> None:
        """Take what was trained and the directory of its base; to compute with them, they are in fp32.

        Otherwise they stay in their files, but for an adapter, which is merged in fp32.
        """
        self._path, self._computing = base, computing
        kept = artifact.kind == "model" and not computing
        self.tuned: PreTrainedModel = open_artifact(
            artifact, _precision(artifact.path) if kept else torch.float32
        ).merged()

    @cached_property
    def base(self) -> PreTrainedModel:
        """The base as it was."""
        return mapped_weights.load(self._path, dtype=torch.float32 if self._computing else _precision(self._path))

    @cached_property
    def changed(self) -> Mapping[str, Any]:
        """What the configuration of the fine-tune has in other words than that of the base."""
        return changed_config(self.base.config, self.tuned.config)

    def again(self) -> PreTrainedModel:
        """Return the base in the configuration of the fine-tune, in fp32; its weights may be replaced by others.

        Where the configuration is the same it has the numbers of `base`, which takes no memory.
        """
        if self.changed:
            return mapped_weights.load(self._path, self.changed, dtype=torch.float32)
        own = {id(weight): nn.Parameter(weight.detach(), requires_grad=False) for weight in self.base.parameters()}
        found: PreTrainedModel = copy.deepcopy(self.base, own)
        return found


def _precision(path: Path) -> torch.dtype:
    """Return the precision of the weights of a model in its files, whatever its configuration says; of several fp32."""
    found = set()
    for file in weight_files(path):
        with safe_open(file, "pt") as weights:
            found |= {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118 - it is no mapping
    return {frozenset({"BF16"}): torch.bfloat16, frozenset({"F16"}): torch.float16}.get(frozenset(found), torch.float32)

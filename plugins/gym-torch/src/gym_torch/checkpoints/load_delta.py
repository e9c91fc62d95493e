"""Loads a delta: its base model, with the change of the fine-tune added to the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_core import Artifact, GymError, Run
from gym_optim.promises import promised
from gym_torch.checkpoints.base_model import base_of
from gym_torch.kinds import LoadTimeQuantizer
from gym_torch.model import mapped_weights
from gym_torch.quantization.weights import stored_modules
from gym_torch.recorded_components import maker_of


class DeltaCodec(ABC):
    """What `gym_torch.kinds.DeltaQuantizer.build` returns."""

    @abstractmethod
    def quantize(self, run: Run, artifact: Artifact, into: Path) -> Artifact:
        """Write what the artifact changed in its base as the directory `into`, all or nothing; return it, of kind `delta`."""

    @abstractmethod
    def changes(self, artifact: Artifact, base: Path) -> Iterator[tuple[str, Tensor]]:
        """Yield the changed weights of a delta by their names in the model, each as what is added to that of the base, in fp32.

        Raises GymError where the file is damaged, or `base` (a directory) is not the one that it was made from, to the bit. A
        weight may have other rows than that of the base, which is then cut, or filled up with zeros.
        """

    def restore(self, artifact: Artifact) -> dict[str, Tensor]:
        """Return the whole weights by name, in fp32, as they are computed with."""
        model = with_delta(artifact, base_of(artifact), torch.float32, codec=self)
        return {name: weight.detach() for name, weight in model.named_parameters()}


def with_delta(
    artifact: Artifact,
    base: Path,
    dtype: torch.dtype | str = torch.float32,
    quantizer: LoadTimeQuantizer | None = None,
    codec: DeltaCodec | None = None,
) -> PreTrainedModel:
    """Load a base (a directory) and add a delta to its weights, which keep their number format; what did not change stays mapped.

    Beside a weight that a `quantizer` holds in a few bits the change stays apart, in that format. `codec` reads the delta, by
    default what the artifact says made it. Raises what `DeltaCodec.changes` does, and PluginError where that is not installed.
    """
    if codec is None:
        cls = maker_of(artifact, "quantizers", artifact.details["delta"], "the delta was made")
        options = cls(**artifact.details.get("options", {}))
        codec = promised(options.build(), DeltaCodec, options, "quantization")  # type: ignore[type-abstract]
    changes = codec.changes(artifact, base)
    changed: Mapping[str, Any] = artifact.details.get("config", {})
    model = mapped_weights.load(base, changed, dtype=dtype, quantizer=quantizer)
    add(model, changes)
    return model


@torch.no_grad()
def add(model: PreTrainedModel, changes: Iterable[tuple[str, Tensor]]) -> None:
    """Add changes to the weights of a model. Raises GymError where it has no such weight, or one of another shape."""
    stored = stored_modules(model)
    ends: dict[str, Tensor] = {}  # weights to which others are tied, as the base has them
    for name, change in changes:
        path, _, own = name.rpartition(".")
        if path in stored and own in (held := stored[path].shapes()):
            if held[own] != change.shape:
                raise _unfit(model, name, change.shape, held[own])
            stored[path] = stored[path].with_change(own, change.to(model.dtype))
            model.set_submodule(path, stored[path])
            continue
        weight = _weight(model, name, change.shape, ends)
        before = weight.detach().float()
        added = change.to(before.device, copy=True)
        added[: len(before)] += before[: len(added)]
        weight.data = added.to(weight.dtype)
        mapped_weights.release(before)


def _weight(model: PreTrainedModel, name: str, shape: torch.Size, ends: dict[str, Tensor]) -> Tensor:
    """Return a weight of this name, on its own where it was tied, and with room for a vocabulary of another size."""
    ties = model.get_expanded_tied_weights_keys(all_submodels=True) or {}
    if name in ties:
        _untie(model, name, ends.get(ties[name], model.get_parameter(name)))
    elif name in ties.values():
        ends[name] = model.get_parameter(name).detach()
    found = dict(model.state_dict(keep_vars=True)).get(name)
    fits = found is not None and found.dim() == len(shape) and found.shape[1:] == shape[1:]
    if found is None or not fits or (found.shape != shape and not _of_vocabulary(model, found)):
        raise _unfit(model, name, shape, None if found is None else found.shape)
    if found.shape != shape:
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            if module is not None and module.weight is found:
                setattr(module, "num_embeddings" if isinstance(module, nn.Embedding) else "out_features", shape[0])
        model.config.get_text_config().vocab_size = shape[0]
    return found


def _of_vocabulary(model: PreTrainedModel, weight: Tensor) -> bool:
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    return any(module is not None and module.weight is weight for module in ends)


def _untie(model: PreTrainedModel, name: str, values: Tensor) -> None:
    """Give a weight that was tied to another one these values for its own."""
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    module.register_parameter(own, nn.Parameter(values.detach().clone(), requires_grad=False))
    model.config.get_text_config().tie_word_embeddings = False
    model.config.tie_word_embeddings = False
    model.all_tied_weights_keys = {}


def _unfit(model: PreTrainedModel, name: str, shape: torch.Size, held: torch.Size | None) -> GymError:
    had = "no such weight" if held is None else f"one of shape {list(held)}"
    return GymError(
        f"the delta has {name} of shape {list(shape)}, and the base has {had}",
        where=model.name_or_path,
        fix="use the base that it was made from",
    )

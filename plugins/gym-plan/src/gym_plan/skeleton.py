"""The model of a recipe without its weights: the same modules, adapter and dtypes over tensors that hold no data.

Fake tensors rather than plain meta ones: they remember the device they stand for, and so take the same kernels as the
run will. The device need not be there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from transformers import PreTrainedModel

from gym_core import Recipe, RecipeError
from gym_core.component import construct
from gym_data.kinds import Data
from gym_plan.repeated_layers import Repeat, groups_with, leave_out, numbers_of, repeat_of, tensors_of
from gym_plan.shared_rows import sharing
from gym_torch.batch import Batch
from gym_torch.config import Further, torch_algorithm
from gym_torch.kinds import Adapter, TorchBackend, part
from gym_torch.memory.gradient_checkpointing import every, recompute_layers
from gym_torch.model.adapted import AdaptedModel, Full, adapt
from gym_torch.model.decoder_layers import layers_of
from gym_torch.model.empty_model import NoDrawing
from gym_torch.model.loading import LoadedModel
from gym_torch.model.rope_scaling import longest
from gym_torch.model.scalar_head import freeze_lm_head
from gym_torch.packing import Layout
from gym_torch.reference import left_out, matrices
from gym_torch.shared_prefixes import training_layout

B = TypeVar("B", bound=Batch)


@dataclass(frozen=True)
class Skeleton:
    """A model ready to be traced, with three of the blocks of layers that it repeats. Counted is the whole model."""

    adapted: AdaptedModel
    repeat: Repeat
    mode: FakeTensorMode
    path: Path  #: directory with its configuration
    precision: str
    device: torch.device
    parameters: int
    groups: list[dict[str, Any]]  #: what is trained, as optimizers are told it, with shapes in place of parameters
    weights: int  #: bytes of weights and buffers, tied ones once
    gradients: int  #: bytes of all gradients
    layout: Layout
    further: tuple[Skeleton, ...] = ()  #: further models that are in memory in every step
    sharing: int = 1  #: processes that share the tokens of a row, of which this is one

    @property
    def kept(self) -> list[Skeleton]:
        """The models that a run makes: this one, and those beside it that train."""
        return [self, *(other for other in self.further if other.gradients)]

    @property
    def trained(self) -> list[tuple[int, ...]]:
        """The shapes of what is trained."""
        return [shape for group in self.groups for _, shape in group["params"]]

    def named(self, prefix: str) -> list[dict[str, Any]]:
        """Return the groups with other names, as those of a part of something."""
        return [
            {**group, "params": [(f"{prefix}.{name}", shape) for name, shape in group["params"]]}
            for group in self.groups
        ]

    @property
    def model(self) -> PreTrainedModel:
        """The causal language model."""
        return self.adapted.model

    def lend(self, batch: B) -> B:
        """Return the batch with tensors that can meet those of the model."""
        return batch.each(lambda tensor: FakeTensor(self.mode, tensor.to("meta"), self.device))


def skeleton(recipe: Recipe, precision: str, device: torch.device) -> Skeleton:
    """Build the model of a recipe for a device from its `config.json`, with its adapter, and those beside it.

    Raises RecipeError where its backend builds no model without weights, and what building the models and the adapter raises.
    """
    own, algorithm = part(recipe, TorchBackend), torch_algorithm(recipe)
    assert own is not None  # such algorithms need one
    built, others = built_alone(recipe, own, precision, device), list[Skeleton]()
    for further in algorithm.further():
        if not further.stays:
            continue
        if further.path is not None:
            others.append(built_alone(recipe, own.other(further.path), precision, device, further))
        elif left_out(built.adapted, recipe) is None:
            others.append(built_alone(recipe, own, precision, device, further))
    return replace(built, further=tuple(others))


def built_alone(
    recipe: Recipe, backend: TorchBackend, precision: str, device: torch.device, further: Further | None = None
) -> Skeleton:
    """Build one of them: that of the recipe, or a further one."""
    if not backend.empty:
        raise RecipeError(
            f"the backend {type(backend).__name__} builds no model without weights, and a plan needs one",
            key="model",
            fix="declare `empty` on it: docs/kinds.md says what that is",
        )
    data = part(recipe, Data)
    if data is not None and data.brings_inputs():
        raise RecipeError(
            "samples may have images, and what these take is not planned yet",
            key="data",
            fix="plan the same recipe with data of text alone, and leave room for the images",
        )
    # In one of several processes a CPU has a number, which results of operations have not.
    device = torch.device("cpu") if device.type == "cpu" else device
    loaded: LoadedModel = construct(backend.empty, backend, precision=precision, samples=longest(recipe), device=device)
    model = loaded.model
    # A few layers are adapted for all where the adapter allows it: peft takes a second for those of a large model.
    adapter = part(recipe, Adapter)
    early = adapter is None or adapter.uniform_layers()
    policy = recipe.train.gradient_checkpointing
    repeat = _shortened(model, every(policy)) if early else Repeat()
    with torch.device("meta"), NoDrawing():
        adapted = _frozen(further, model, recipe) if further and not further.trains else adapt(model, recipe)
        if further is not None:
            freeze_lm_head(model)
    repeat = repeat if early else _shortened(model, every(policy))
    recompute_layers(model, policy)
    model.train()
    tensors = tensors_of(model, repeat)
    weights = [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]
    trained = [weight for weight in weights if weight.requires_grad]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    _stand_for(device, model, mode)
    return Skeleton(
        adapted,
        repeat,
        mode,
        loaded.path,
        loaded.precision,
        device,
        parameters=numbers_of(model, repeat),
        groups=groups_with(model, repeat),
        weights=sum(tensor.nbytes for tensor in tensors),
        gradients=sum(weight.nbytes for weight in trained),
        layout=training_layout(recipe, loaded, model),
        sharing=sharing(recipe, loaded),
    )


def _frozen(further: Further, model: PreTrainedModel, recipe: Recipe) -> AdaptedModel:
    """Return a further model that does not train; a copy of the one that does holds all but matrices as that does."""
    held = {weight: weight.dtype for weight in matrices(model)}
    if further.follows:
        held = {weight: torch.float32 for weight in model.parameters() if weight.is_floating_point()}
    if further.path is None:
        adapt(model, recipe)
    for weight, dtype in held.items():
        weight.data = weight.data.to(dtype)
    return Full(None, model, trained=lambda name: False)


def _shortened(model: PreTrainedModel, every: int) -> Repeat:
    """Leave out what repeats but for three blocks, and return what that was."""
    repeat = repeat_of(layers_of(model)[2], every)
    leave_out(model, repeat.numbers(repeat.times - 1))
    return repeat


def _stand_for(device: torch.device, model: nn.Module, mode: FakeTensorMode) -> None:
    """Replace the meta tensors of a model, which peft and `Module.to` can work on, by fake ones on a device."""
    replaced: dict[int, Tensor] = {}  # tied weights stay tied
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            fake = FakeTensor(mode, weight.detach(), device)
            replaced.setdefault(id(weight), nn.Parameter(fake, requires_grad=weight.requires_grad))
            setattr(module, name, replaced[id(weight)])
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, FakeTensor(mode, buffer, device))

"""The model of a recipe without its weights: the same modules, adapter and dtypes over tensors that hold no data.

Fake tensors rather than plain meta ones: they remember the device they stand for, and so take the same kernels as the
run will. The device need not be there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_core import GymError, Recipe
from gym_torch.adapted import Adapted, adapt, recompute_layers
from gym_torch.attention import NAME
from gym_torch.batch import Batch
from gym_torch.config import Transformers
from gym_torch.layout import PACKED, PADDED, Layout

B = TypeVar("B", bound=Batch)
_SCALARS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Skeleton:
    """A model ready to be traced."""

    adapted: Adapted
    mode: FakeTensorMode
    precision: str
    device: torch.device
    parameters: int
    trained: tuple[tuple[int, ...], ...]  #: shapes of what is trained
    weights: int  #: bytes of weights and buffers, tied ones once
    gradients: int  #: bytes of all gradients
    layout: Layout

    @property
    def model(self) -> PreTrainedModel:
        """The causal language model."""
        return self.adapted.model

    def lend(self, batch: B) -> B:
        """Return the batch with tensors that can meet those of the model."""
        tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
        lent = {
            name: FakeTensor(self.mode, value.to("meta"), self.device)
            for name, value in tensors.items()
            if isinstance(value, Tensor)
        }
        return replace(batch, **lent)

    @contextmanager
    def cut(self, layers: list[nn.Module]) -> Iterator[None]:
        """Let the model have these layers alone for a while."""
        parent, name, whole = _layers(self.model)
        options = self.model.config.get_text_config()
        count = options.num_hidden_layers
        setattr(parent, name, nn.ModuleList(layers))
        options.num_hidden_layers = len(layers)
        try:
            yield
        finally:
            setattr(parent, name, whole)
            options.num_hidden_layers = count


def skeleton(recipe: Recipe, path: Path, precision: str, device: torch.device) -> Skeleton:
    """Build the model of a recipe for a device from the `config.json` under `path`, with its adapter.

    Raises GymError where transformers cannot build it, and what the adapter raises.
    """
    backend = recipe.model
    assert isinstance(backend, Transformers)
    options: dict[str, Any] = {"trust_remote_code": backend.trust_remote_code}
    try:
        shape = AutoConfig.from_pretrained(path, local_files_only=True, **options)
        # The kernel of an accelerator is compiled, which fake tensors cannot be: fused attention keeps the same tensors.
        packs = backend.attention == "auto" and device.type == "cpu"
        if packs or backend.attention != "auto":
            options["attn_implementation"] = NAME if packs else backend.attention
        options["dtype"] = _dtype(backend, shape, precision)
        with torch.device("meta"), _NoDrawing():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(shape, **options)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()[0][:300]
        raise GymError(f"the model cannot be built: {reason}", where=str(path), key="model") from error
    with torch.device("meta"), _NoDrawing():
        adapted = adapt(model, recipe)
    if recipe.train.gradient_checkpointing:
        recompute_layers(model)
    model.train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    built = Skeleton(
        adapted,
        FakeTensorMode(allow_non_fake_inputs=True),
        precision,
        device,
        parameters=sum(weight.numel() for weight in model.parameters()),
        trained=tuple(tuple(weight.shape) for weight in trained),
        weights=sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()]),
        gradients=sum(weight.nbytes for weight in trained),
        layout=PACKED if packs else PADDED,
    )
    starts = blocks(model)
    with built.cut(starts[-1]):
        _stand_for(device, model, built.mode)
    return built


def blocks(model: PreTrainedModel) -> list[list[nn.Module]]:
    """Return lists of layers to trace: all of them, or a shorter and a longer start where layers repeat.

    The longer start has one period of the pattern more than the shorter one, and the whole has a multiple of it more.
    """
    layers = list(_layers(model)[2])
    signs = [_signature(layer) for layer in layers]
    period = next((p for p in range(1, len(layers)) if signs[p:] == signs[:-p]), len(layers))
    short = len(layers) % period + 2 * period
    return [layers[:short], layers[: short + period]] if short + period < len(layers) else [layers]


def period_count(model: PreTrainedModel, traced: list[list[nn.Module]]) -> int:
    """Return how many blocks the whole model has more than the shorter of two traced starts."""
    return (len(_layers(model)[2]) - len(traced[0])) // (len(traced[1]) - len(traced[0]))


class _NoDrawing(TorchFunctionMode):
    """Leaves out the drawing of first values, which would be half of the time it takes to build a model."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the tensor as it is in place of initializing it."""
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


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


def _dtype(backend: Transformers, shape: Any, precision: str) -> torch.dtype:
    """Return the dtype that frozen weights will have."""
    stored = getattr(shape.get_text_config(), "dtype", None) or torch.float32
    kept = torch.bfloat16 if backend.dtype == "bf16" else stored
    return kept if backend.init == "pretrained" and precision == "bf16" and backend.dtype != "fp32" else torch.float32


def _layers(model: PreTrainedModel) -> tuple[nn.Module, str, nn.ModuleList]:
    """Return the list of decoder layers, with the module and the name it is found under."""
    count = model.config.get_text_config().num_hidden_layers
    for parent in model.base_model.modules():
        for name, module in parent.named_children():
            if isinstance(module, nn.ModuleList) and len(module) == count:
                return parent, name, module
    raise GymError(f"{type(model).__name__} has no list of layers", key="model")


def _signature(layer: nn.Module) -> list[Any]:
    """Return what decides how a layer computes, its number excepted."""
    return [
        (
            name,
            type(module),
            {key: value for key, value in vars(module).items() if isinstance(value, _SCALARS) and key != "layer_idx"},
            [(key, tuple(p.shape), p.dtype, p.requires_grad) for key, p in module.named_parameters(recurse=False)],
        )
        for name, module in layer.named_modules()
    ]

"""Compiled code of a decoder layer, loaded from files and run: two libraries, forward and backward, and what they are for.

Nothing is traced here and no compiler is imported, so a run has it in no time. A call that the code was not made for (another
adapter, a cache, a hook that looks on) is computed by the layer as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gym_torch.compiled.layer_calls import leaves, tensor_of
from gym_torch.compiled.layer_state import LayerState
from gym_torch.console import warn
from gym_torch.kernels.kernel_trials import watched
from gym_torch.rounding import DTYPES
from gym_torch.segment_spans import Spans

MANIFEST = "layer.json"
_TENSORS = (Tensor, nn.Parameter)  #: others are spread over processes, quantized, or without data

Everywhere = Callable[[list[str]], list[str]]  #: joins the lists of all processes of a run; `list` where there is one


class UnfitError(Exception):
    """Layers that cannot be compiled; says why."""


class LayerCode:
    """What was made of a layer, for all that are like it."""

    def __init__(self, folder: Path) -> None:
        """Load it. Raises UnfitError where it cannot be."""
        try:
            told, libraries = _read(folder)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise UnfitError(f"their code cannot be read: {type(error).__name__} in {folder}") from error
        self.precision: str = told["precision"]
        self.told = False  #: whether a line said that a layer does without it
        self.proven: set[bool] = set()  #: modes, training or not, in which a layer was found to compute the same
        self._tensors: dict[str, dict[str, Any]] = told["tensors"]
        self._values: dict[str, Any] = told["values"]
        #: Name, shape, precision, and whether it trains.
        self.weights: list[tuple[str, list[int], str, bool]] = told["weights"]
        #: What the backward pass is given: numbers of inputs, and None for each further output of the forward pass.
        self._kept: list[int | None] = told["kept"]
        self._gradients: list[int] = told["gradients"]  #: numbers of the inputs that it returns the gradients of
        self.forward, self._backward = libraries

    def tensors(self, given: dict[str, Any]) -> list[Tensor] | None:
        """Return the tensors that the code takes of what a layer is given, by path; None where it was made for other calls."""
        if len(given) != len(self._tensors) + len(self._values):
            return None
        if any(path not in given or given[path] != value for path, value in self._values.items()):
            return None
        found, sizes = [], dict[str, int]()
        for path, told in self._tensors.items():
            leaf = given.get(path)
            tensor = tensor_of(leaf)
            if (type(leaf) is Spans) != told["spans"] or not _usual(tensor):
                return None
            same = str(tensor.dtype) == told["dtype"] and tensor.dim() == len(told["sizes"])
            if not same or (tensor.requires_grad and not told["learns"] and torch.is_grad_enabled()):
                return None
            for size, wanted in zip(tensor.shape, told["sizes"], strict=True):
                varies = type(wanted) is str
                if size != (sizes.setdefault(wanted, size) if varies else wanted) or (varies and size < 2):
                    return None
            found.append(tensor.contiguous())
        return found

    def kept(self, inputs: tuple[Tensor, ...], further: list[Tensor]) -> list[Tensor]:
        """Return what the backward pass is given beside the gradient of what comes out."""
        others = iter(further)
        return [next(others) if number is None else inputs[number] for number in self._kept]

    def backward(self, kept: list[Tensor], by_out: Tensor, count: int) -> list[Tensor | None]:
        """Return the gradients of so many inputs."""
        assert self._backward is not None
        found: list[Tensor | None] = [None] * count
        for number, gradient in zip(self._gradients, self._backward.run([*kept, by_out]), strict=True):
            found[number] = gradient
        return found


class CompiledForward:
    """Computes the forward pass of one layer by its code, as long as the layer is what it was."""

    def __init__(self, code: LayerCode, layer: nn.Module) -> None:
        """Take the code for a layer as it is now."""
        self.code, self._layer = code, layer
        self._state = LayerState(layer)
        names = [name.rpartition(".")[::2] for name, *_ in code.weights]
        parts = [(layer.get_submodule(owner), name) for owner, name in names]
        self._weights = [
            (part._parameters if name in part._parameters else part._buffers, name) for part, name in parts
        ]
        self._known = [
            (torch.Size(shape), getattr(torch, dtype.removeprefix("torch.")), learns, True, True)
            for _, shape, dtype, learns in code.weights
        ]

    def __call__(self, layer: Any, *inputs: Any, **options: Any) -> Any:
        """Return what the layer makes of what it is given, by the code or as the layer is."""
        found = self.computed(layer, *inputs, **options) if layer.training in self.code.proven else None
        if found is not None:
            return found
        if layer.training and torch.is_grad_enabled() and not watched() and not self.code.told:
            self.code.told = True
            warn(f"a compiled {type(layer).__name__} is given what it was not compiled for, and computes it as before")
        return layer.whole_forward(*inputs, **options)

    def computed(self, layer: Any, *inputs: Any, **options: Any) -> Tensor | None:
        """Return what the code makes of what the layer is given; None where it was not made for that."""
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
        weights = [held[name] for held, name in self._weights]
        known = (
            layer is self._layer and dtype == DTYPES[self.code.precision]
        )  # a copy of the layer has weights of its own
        same = known and not watched() and self._state.lasts(layer.training) and self._fit(weights)
        tensors = self.code.tensors(dict(leaves((inputs, options)))) if same else None
        if tensors is None:
            return None
        again = layer.training and layer.gradient_checkpointing
        with torch.autocast("cpu", enabled=False):  # its casts are in the code
            found: Tensor = _Pass.apply(self.code, again, *tensors, *weights)  # type: ignore[no-untyped-call]
        return found

    def _fit(self, weights: list[Tensor]) -> bool:
        return all(type(weight) in _TENSORS for weight in weights) and self._known == [
            (weight.shape, weight.dtype, weight.requires_grad, weight.is_cpu, weight.is_contiguous())
            for weight in weights
        ]


def _read(folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """Return what the code is for, and the libraries of both passes.

    Libraries go by file; whatever has the path of one that a process loaded before would be taken for that.
    """
    told: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    load = torch._C._aoti.AOTIModelContainerRunnerCpu
    return told, [name and load(str(folder / name), 1) for name in told["libraries"]]


def _usual(tensor: Any) -> bool:
    return type(tensor) in _TENSORS and tensor.device.type == "cpu"


class _Pass(torch.autograd.Function):
    """A layer as one operation, which keeps what its backward pass reads, or its inputs alone to compute that `again`."""

    @staticmethod
    def forward(ctx: Any, code: LayerCode, again: bool, *inputs: Tensor) -> Tensor:
        out, *further = code.forward.run(list(inputs))
        ctx.code, ctx.again, ctx.count = code, again, len(inputs)
        ctx.save_for_backward(*(inputs if again else code.kept(inputs, further)))
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        kept = list(ctx.saved_tensors)
        if ctx.again:
            kept = ctx.code.kept(ctx.saved_tensors, ctx.code.forward.run(kept)[1:])
        return None, None, *ctx.code.backward(kept, by_out.contiguous(), ctx.count)

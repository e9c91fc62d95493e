"""Compiled decoder layers: one graph for all that are equal, for rows of any length and any segments."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from transformers import PreTrainedModel

from gym_torch.batch import Piece
from gym_torch.model import compiled_code
from gym_torch.model.gradient_checkpointing import Policy, recomputable
from gym_torch.model.hidden_states import hidden_states
from gym_torch.model.patched_forward import restore
from gym_torch.model.precision_probe import milliseconds, remembered
from gym_torch.packing import Layout

WORTH = 1.05  #: the compiled layer must be so many times as fast


@dataclass(frozen=True)
class Trial:
    """What a forward and backward pass of one layer took, in milliseconds, and what it took to compile it, in seconds."""

    eager_ms: float
    compiled_ms: float
    seconds: float
    error: str = ""  #: why it cannot be compiled

    @property
    def pays(self) -> bool:
        """Return whether to compile where nobody says."""
        return not self.error and self.eager_ms > WORTH * self.compiled_ms

    def __str__(self) -> str:
        """Say what was found in a few words."""
        if self.error:
            return f"layers cannot be compiled: {self.error}"
        return f"{self.compiled_ms:.3g} ms a layer against {self.eager_ms:.3g} ms"


@dataclass(frozen=True)
class Layers:
    """The layers of a model in training, as what compiles them needs to know them."""

    model: PreTrainedModel
    layout: Layout
    bf16: bool
    recomputed: Policy = False  #: what they compute again, as `recompute_layers` was told

    #: In the row of the trial, and its segments: sizes that nothing in a model has, for torch takes equal ones for the same.
    tokens: ClassVar[int] = 1021
    segments: ClassVar[int] = 23

    @property
    def what(self) -> str:
        """What tells the first layer from others: its shape, what trains in it, its kernels, and what it computes again."""
        first = recomputable(self.model)[0]
        inside = [
            [name, list(part.shape), str(part.dtype), part.requires_grad] for name, part in first.named_parameters()
        ]
        kernels = [name for name, module in first.named_modules() if "forward" in vars(module)]
        made_of = [self.model.config.to_dict(), str(first), inside, kernels]  # an adapter is a part of the layer
        return json.dumps([*made_of, self.layout.name, self.bf16, self.recomputed], default=str)

    def eager_ms(self) -> float:
        """Return what a pass of one layer takes on this machine as it is."""
        passes = _passes(self, _row(self))
        found = remembered(
            "layer", self.what, lambda: {"ms": milliseconds(partial(passes, recomputable(self.model)[0]))}
        )
        return float(found["ms"])

    def compile(self) -> float:
        """Compile all layers in place; return what it took in seconds. Raises BackendCompilerFailed where nothing can."""
        began, row = time.monotonic(), _row(self)
        compiled_code.use()
        for layer in recomputable(self.model):
            _compile(layer)
        _meet(self, row, recomputable(self.model)[0])
        return time.monotonic() - began

    def tried(self) -> Trial:
        """Return the trial of a copy of the first layer, whose code is left in the folder; noted there, it is made once."""
        if found := compiled_code.known(self.what):
            return Trial(**found)
        began, eager, row = time.monotonic(), self.eager_ms(), _row(self)
        copied = copy.deepcopy(recomputable(self.model)[0])
        _compile(copied)
        try:
            _meet(self, row, copied)
        except BackendCompilerFailed as error:  # a compiler of C++ is no part of an installation
            return Trial(eager, 0.0, 0.0, str(error.inner_exception).splitlines()[0])
        seconds = time.monotonic() - began
        taken = milliseconds(partial(_passes(self, row), copied))
        found = {"eager_ms": eager, "compiled_ms": taken, "seconds": round(seconds, 1)}
        compiled_code.note(self.what, found)
        return Trial(**found)


def _compile(layer: nn.Module) -> None:
    """Compile a layer in place, for rows of any length, by what its classes say: a kernel in it would be code of its own."""
    for module in layer.modules():
        restore(module)
    layer.compile(dynamic=True)


def _meet(layers: Layers, row: _Row, layer: nn.Module) -> None:
    """Have a layer meet all that it meets in training, in one order: of the same row comes the same code, to the last bit."""
    passes = _passes(layers, row)
    if not any(weight.requires_grad for weight in layers.model.get_input_embeddings().parameters()):
        passes(layer, learns=False)  # as the first one is given; all others are given what has a gradient
    passes(layer)


@dataclass(frozen=True)
class _Row:
    """What the first layer is given for a row of a few samples."""

    given: Tensor
    others: tuple[Any, ...]
    options: dict[str, Any]


def _row(layers: Layers) -> _Row:
    caught: list[_Row] = []

    def catch(_module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        caught.append(_Row(inputs[0].detach(), inputs[1:], options))

    model = layers.model
    tokens = np.arange(layers.tokens, dtype=np.int32) % model.config.get_text_config().vocab_size
    pieces = [
        Piece("trial", part, np.ones(len(part), dtype=np.bool_)) for part in np.array_split(tokens, layers.segments)
    ]
    hook = recomputable(model)[0].register_forward_pre_hook(catch, with_kwargs=True)
    with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=layers.bf16):
        hidden_states(model, layers.layout.lay_out(pieces, ()).to(model.device))
    hook.remove()
    return caught[0]


def _passes(layers: Layers, row: _Row) -> Callable[..., Tensor]:
    """Return what runs a layer forward and backward on a row, and leaves no gradient in it."""

    def passes(layer: nn.Module, learns: bool = True) -> Tensor:
        entering = row.given.clone().requires_grad_(learns)
        with torch.random.fork_rng(), torch.autocast(entering.device.type, torch.bfloat16, enabled=layers.bf16):
            out = layer(entering, *row.others, **row.options)
        loss = (out[0] if isinstance(out, tuple) else out).float().square().mean()
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        layer.zero_grad()
        return loss.detach() if entering.grad is None else entering.grad

    return passes

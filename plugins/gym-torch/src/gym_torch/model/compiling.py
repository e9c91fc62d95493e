"""Whether to compile the layers of a model: tried on one of them, remembered, and said aloud.

Compiling pays where memory traffic between matrix products takes the time, and costs half a minute or more at the
start of every process, so short runs are left alone.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from transformers import PreTrainedModel

from gym_core import Run, Train
from gym_torch.batch import Piece
from gym_torch.console import say
from gym_torch.model.gradient_checkpointing import Policy, recomputable
from gym_torch.model.hidden_states import hidden_states
from gym_torch.model.loading import LoadedModel
from gym_torch.model.precision_probe import milliseconds, remembered
from gym_torch.packing import Layout

TOKENS = 1024  #: in the row of the trial
LONG = 900.0  #: seconds of training below which a trial is not worth its time
WORTH = 1.05  #: the compiled layer must be so many times as fast


@dataclass(frozen=True)
class Trial:
    """What a forward and backward pass of one layer took."""

    eager_ms: float
    compiled_ms: float

    @property
    def pays(self) -> bool:
        """Return whether to compile."""
        return self.eager_ms > WORTH * self.compiled_ms

    def __str__(self) -> str:
        """Say what was found in one line."""
        verdict = "compiled" if self.pays else "not compiled"
        return f"layers are {verdict} ({self.compiled_ms:.3g} ms against {self.eager_ms:.3g} ms)"


def compile_layers(model: nn.Module) -> None:
    """Compile every layer in place, for rows of any length; layers of one kind share their code."""
    for layer in recomputable(model):
        layer.compile(dynamic=True)


def decide(
    asked: bool | str, model: PreTrainedModel, layout: Layout, bf16: bool, tokens: int, recomputed: Policy = False
) -> bool:
    """Return whether to compile for a run over so many tokens, and say what was found where it was tried.

    `asked` is true, false or `auto`; `recomputed` is what layers compute again, as `recompute_layers` was told. How long the
    run will take is judged by one layer, on this machine.
    """
    layers = recomputable(model)
    if asked != "auto" or not layers:
        return asked is True
    inside = [[name, list(part.shape), part.requires_grad] for name, part in layers[0].named_parameters()]
    made_of = [model.config.to_dict(), str(layers[0]), inside]  # an adapter is a part of the layer
    shape = json.dumps([*made_of, layout.name, bf16, recomputed], default=str)
    passes = _passes(model, layout, bf16)
    eager = remembered("layer", shape, lambda: {"ms": milliseconds(partial(passes, layers[0]))})["ms"]
    if eager / 1000 * len(layers) * tokens / TOKENS < LONG:
        return False
    compiled = copy.deepcopy(layers[0])
    compiled.compile(dynamic=True)
    try:
        took = remembered("compiled layer", shape, lambda: {"ms": milliseconds(partial(passes, compiled))})["ms"]
    except BackendCompilerFailed as error:  # a compiler of C++ is no part of an installation
        say(f"layers are not compiled: {error.inner_exception}".splitlines()[0])
        return False
    found = Trial(eager, took)
    say(str(found))
    return found.pays


def _passes(model: PreTrainedModel, layout: Layout, bf16: bool) -> Callable[[nn.Module], Tensor]:
    """Return what runs a layer forward and backward on what the first layer is given for a row of four samples."""
    given: dict[str, Any] = {}

    def catch(_module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        given.update(inputs=inputs, options=options)

    tokens = np.arange(TOKENS, dtype=np.int32) % model.config.get_text_config().vocab_size
    pieces = [Piece("trial", part, np.ones(len(part), dtype=np.bool_)) for part in np.split(tokens, 4)]
    autocast = partial(torch.autocast, model.device.type, torch.bfloat16, enabled=bf16)
    hook = recomputable(model)[0].register_forward_pre_hook(catch, with_kwargs=True)
    with torch.no_grad(), autocast():
        hidden_states(model, layout.lay_out(pieces, ()).to(model.device))
    hook.remove()
    first, *others = given["inputs"]

    def passes(layer: nn.Module) -> Tensor:
        layer.zero_grad()
        entering = first.detach().clone().requires_grad_()
        with autocast():
            out = layer(entering, *others, **given["options"])
        (out[0] if isinstance(out, tuple) else out).float().square().mean().backward()
        assert entering.grad is not None
        layer.zero_grad()
        return entering.grad

    return passes


def compile_where_it_pays(run: Run, model: PreTrainedModel, loaded: LoadedModel, train: Train, tokens: int) -> None:
    """Compile the layers of a model that trains on so many tokens, where that pays; a resumed run does as it did before."""
    chosen = run.record.read().get("compiled") if run.resuming else None
    if chosen is None:
        asked, layout, bf16 = loaded.compile, loaded.layout, loaded.precision == "bf16"
        chosen = run.ranks.agree(lambda: decide(asked, model, layout, bf16, tokens, train.gradient_checkpointing))
    run.record.update(compiled=chosen)
    if chosen:
        compile_layers(model)

"""LLaMA-Pro: new blocks between those of a model train, the model itself is left alone, and what comes out is larger."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

import gym_torch.model.adapted
from gym_adapters.config.llama_pro import LLaMAPro
from gym_core import GymError
from gym_torch.model.adapted import skeleton
from gym_torch.model.decoder_layers import layers_of

#: what model families call the projections out of attention and out of the feed-forward layers
OUTPUTS = frozenset({"o_proj", "down_proj", "out_proj", "dense", "fc2", "c_proj", "wo", "w2", "dense_4h_to_h"})


class LlamaProAdapter(gym_torch.model.adapted.Full):
    """Copies of blocks that add nothing at first, one after each equal part of the model (arXiv:2401.02415, section 3.2).

    A copy has zeros where it writes to the residual stream, so the output is unchanged. What is saved is a plain model with the
    new number of layers; training goes on from it with `freeze: {trainable_layers: N, spread: true}`.
    """

    def __init__(self, config: LLaMAPro, model: PreTrainedModel, seed: int = 0) -> None:
        """Put the blocks in and freeze the rest. Raises GymError where they do not come out even, or would change the output."""
        _, _, layers = layers_of(model)
        self._base, part = list(layers), len(layers) // config.blocks
        if len(layers) % config.blocks:
            even = [count for count in range(1, len(layers) + 1) if len(layers) % count == 0]
            raise GymError(
                f"{len(layers)} layers cannot be parted by {config.blocks} new blocks",
                key="adapter.blocks",
                fix=f"set one of {', '.join(map(str, even))}",
            )
        self._whole: list[nn.Module] = []
        for number, layer in enumerate(self._base, 1):
            self._whole += [layer] if number % part else [layer, _silent(layer, model)]
        before = copy.deepcopy(model.config)
        _check_numbers(model, before, _arrange(model, self._whole))
        new = {id(weight) for layer in self._whole if layer not in self._base for weight in layer.parameters()}
        names = {name for name, weight in model.named_parameters() if id(weight) in new}
        super().__init__(config, model, seed, trained=names.__contains__)

    def describe(self) -> str:
        """Return the numbers of the new layers."""
        new = [str(number) for number, layer in enumerate(self._whole) if layer not in self._base]
        return f"new layers {', '.join(new)} of {len(self._whole)}"

    @property
    def disable_adapter(self) -> Callable[[], AbstractContextManager[None]] | None:
        """What leaves the new blocks out for a while."""
        return self._disabled

    @contextmanager
    def _disabled(self) -> Iterator[None]:
        _arrange(self.model, self._base)
        try:
            yield
        finally:
            _arrange(self.model, self._whole)


def _silent(layer: nn.Module, model: PreTrainedModel) -> nn.Module:
    """Return a copy of a block that leaves the residual stream as it is. Raises GymError where its outputs have other names."""
    # The configuration stays one for all layers: it says by which attention they attend.
    shared = {id(options): options for options in (model.config, model.config.get_text_config())}
    made = copy.deepcopy(layer, shared)
    written = 0
    for name, weight in made.named_parameters():
        parts = name.removesuffix("_bias").split(".")  # as experts call theirs
        if parts[-1] in OUTPUTS or (len(parts) > 1 and parts[-2] in OUTPUTS):
            nn.init.zeros_(weight)
            written += 1
    if written < 2:
        raise GymError(
            f"{type(layer).__name__} has no projections out of attention and feed-forward by a name known here",
            key="adapter",
            fix="set adapter: freeze or lora",
        )
    return made


def _arrange(model: PreTrainedModel, layers: Sequence[nn.Module]) -> list[int]:
    """Let these be the layers of a model, in its lists, in its configuration, and by their own numbers.

    Returns the number that each had, or for a new block, the one before it had.

    Lists of the configuration with an entry for each layer are laid out anew: a new block is of the kind of the one before it.
    """
    parent, name, old = layers_of(model)
    options = model.config.get_text_config()
    kinds = {id(layer): number for number, layer in enumerate(old)}
    found = list[int]()
    for layer in layers:
        found.append(kinds.get(id(layer), found[-1] if found else 0))
    for key, value in list(vars(options).items()):
        if isinstance(value, list) and len(value) == len(old):
            setattr(options, key, [value[place] for place in found])
    setattr(parent, name, nn.ModuleList(layers))
    options.num_hidden_layers = len(layers)
    for number, layer in enumerate(layers):
        for module in layer.modules():
            if "layer_idx" in vars(module):
                module.layer_idx = number
    return found


def _check_numbers(model: PreTrainedModel, before: PretrainedConfig, places: Sequence[int]) -> None:
    """Raise GymError where the configuration makes another layer of a number than the one that stands there now.

    Some say which layers are dense, or what each does, by numbers. What is saved would then be opened as something else.
    """
    old, new = (layers_of(skeleton(config, type(model)))[2] for config in (before, model.config))
    for number, place in enumerate(places):
        if _kind(new[number]) != _kind(old[place]):
            raise GymError(
                f"layer {number} would be of another kind once it is opened again: {type(model).__name__} tells kinds by numbers",
                key="adapter.blocks",
                fix="set adapter: freeze or lora, or blocks: 1, which comes last",
            )


def _kind(layer: nn.Module) -> list[object]:
    """Return what a layer is made of, but for its number: classes, shapes and settings."""
    plain = bool | int | float | str | None
    settings = [
        (
            name,
            type(part),
            {key: value for key, value in vars(part).items() if isinstance(value, plain) and key != "layer_idx"},
        )
        for name, part in layer.named_modules()
    ]
    return [settings, [(name, weight.shape) for name, weight in layer.named_parameters()]]

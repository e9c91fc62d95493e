"""The decoder layers of a model, one after another: shown to a method, written, and passed by the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_quant.config.stored_layout import Scheme
from gym_quant.post_training import evidence
from gym_quant.post_training.calibration import Samples
from gym_quant.post_training.checkpoint import Checkpoint
from gym_quant.post_training.grid import rounded_tokens
from gym_quant.post_training.method import Layer, Method
from gym_quant.post_training.separate_experts import separate
from gym_quant.post_training.walk import Walk, raised
from gym_torch.checkpoints import weight_shards
from gym_torch.model.decoder_layers import layers_of


class LayerWork:
    """Quantizes a model, of which one layer at a time is in memory.

    Three walks go side by side: the calibration samples through the layers as they are quantized, and the samples held out
    through these and through the layers as they were.
    """

    def __init__(
        self, model: PreTrainedModel, schemes: Mapping[str, Scheme], method: Method[Any], samples: Samples | None
    ) -> None:
        """Take what is to be done."""
        self.model, self.schemes, self.method, self.samples = model, schemes, method, samples
        self.layers = layers_of(model)[2]
        self.prefix = next(name for name, module in model.named_modules() if module is self.layers)
        self.told: dict[str, Any] = {}  #: what became of each weight, by name
        self.before: Walk | None = None  #: through the layers as they were
        self.after: Walk | None = None  #: through the layers as they are quantized

    def choose(self) -> None:
        """Let the method say how each weight is to be written."""
        self.schemes = self.method.schemes(self.schemes, self._unchanged)

    def write(self, checkpoint: Checkpoint) -> None:
        """Quantize and write each layer, and all that is in no layer."""
        calibrating = None
        if self.samples:
            calibrating = Walk(self.model, self.samples.calibration)
            self.before, self.after = (Walk(self.model, self.samples.holdout) for _ in range(2))
        for number in range(len(self.layers)):
            self._through(number, checkpoint, calibrating)
        own = weight_shards.own_weights(self.model)
        checkpoint.keep((name, weight) for name, weight in own.items() if not name.startswith(f"{self.prefix}."))

    def compared(self) -> dict[str, float] | None:
        """Return how the models compare on the samples held out; None without data. Raises what `Walk.check` does."""
        if self.before is None or self.after is None:
            return None
        self.before.check()
        return evidence.compare(self.before, self.after)

    def _through(self, number: int, checkpoint: Checkpoint, calibrating: Walk | None) -> None:
        """Quantize and write a layer, and let the samples through; nothing of it is left when the next one comes."""
        layer = self._layer(number, calibrating)
        if self.before:
            self.before.forward(number, layer.module)
        self._quantize(number, layer, checkpoint, self.layers[number])
        layer.inputs.clear()  # what is known of them takes as much as the layer
        for walk in (calibrating, self.after):
            if walk:
                walk.forward(number, layer.module)

    def _quantize(self, number: int, layer: Layer, checkpoint: Checkpoint, original: nn.Module) -> None:
        for name, codes in self.method.quantize(layer).items():
            checkpoint.codes(name, codes)
            linear = layer.linears[name]
            inputs = layer.inputs.get(name)
            self.told[name] = {"scheme": codes.scheme._asdict()} | evidence.layer_error(
                linear.weight, codes.weight(), inputs.moments if inputs else None
            )
            linear.weight.data = codes.weight().float()
            if codes.scheme.activations:
                linear.register_forward_pre_hook(lambda module, args: (rounded_tokens(args[0]),))
        stored, now = original.state_dict(), layer.module.state_dict()
        names = [name for name in stored if name in now and f"{self._inside(number)}{name}" not in self.schemes]
        with torch.no_grad():
            for name in names:  # what was changed computes from here on as it will be stored
                weight = layer.module.get_parameter(name) if name in dict(original.named_parameters()) else None
                if weight is not None:
                    weight.copy_(weight.to(stored[name].dtype))
        checkpoint.keep((f"{self._inside(number)}{name}", now[name].to(stored[name].dtype)) for name in names)

    def _unchanged(self) -> Iterator[Layer]:
        """Yield each layer as it is, with the calibration samples behind those before it."""
        walk = Walk(self.model, self.samples.calibration) if self.samples else None
        for number in range(len(self.layers)):
            layer = self._layer(number, walk)
            yield layer
            if walk:
                walk.forward(number, layer.module)
            del layer  # before the next one comes

    def _layer(self, number: int, walk: Walk | None) -> Layer:
        module = separate(raised(self.layers[number]))
        inside = self._inside(number)
        linears: dict[str, nn.Linear] = {
            name: module.get_submodule(name.removeprefix(inside).removesuffix(".weight"))  # type: ignore[misc]
            for name in self.schemes
            if name.startswith(inside)
        }
        if walk is None:
            return Layer(module, linears, self.schemes, self.model.dtype)
        outputs: Callable[[], Tensor] = partial(walk.outputs, number, module)
        inputs = walk.inputs(number, module, linears, self.method.token_weights)
        return Layer(module, linears, self.schemes, self.model.dtype, inputs, outputs)

    def _inside(self, number: int) -> str:
        return f"{self.prefix}.{number}."

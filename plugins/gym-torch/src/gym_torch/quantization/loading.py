"""Quantizes a model while transformers loads it: each weight is read, encoded and freed before the next one is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from gym_core import GymError
from gym_optim.promises import promised
from gym_torch.kernels.precision_probe import device
from gym_torch.kinds import LoadTimeQuantizer
from gym_torch.model_files import stored_tensor
from gym_torch.quantization.experts import quantizable
from gym_torch.quantization.quantizable_weights import to_quantize
from gym_torch.quantization.stored_format import StoredFormat
from gym_torch.quantization.stored_formats import prepare
from gym_torch.quantization.weight_codec import KEY, WeightCodec, decoded, encoded
from gym_torch.quantization.weights import matrix_of, stored_layer, stored_modules

METHOD = "gym"  #: what transformers calls it while a model is loaded; nothing of it stays in the model


def codec_of(quantizer: LoadTimeQuantizer, shape: PretrainedConfig) -> WeightCodec:
    """Return the codec of a quantizer, tried on a small matrix.

    Raises GymError, before anything is loaded, where it does not work with this model, on this machine, or at all.
    """
    before = getattr(shape, "quantization_config", None)
    if before is not None:
        told = before if isinstance(before, dict) else before.to_dict()
        raise GymError(
            f"the model is quantized already ({told.get('quant_method', 'unknown')})",
            key=KEY,
            fix="leave `quantization` out, or name the model that it was made of",
        )
    codec = promised(quantizer.build(), WeightCodec, quantizer, KEY)  # type: ignore[type-abstract]
    codec.check(shape, device())
    trial = torch.linspace(-1, 1, 2048, device=device()).view(32, 64)
    decoded(codec, encoded(codec, trial), trial.shape)
    return codec


@torch.no_grad()
def quantize_layer(
    model: nn.Module, name: str, weight: Tensor, codec: WeightCodec, original: Callable[[], Tensor] | None = None
) -> None:
    """Replace the layer of a weight by a quantized one. The weight is encoded on the device of the run."""
    layer = model.get_submodule(name)
    matrix = matrix_of(layer, weight)
    stored = {key: tensor.to(weight.device) for key, tensor in encoded(codec, matrix.to(device())).items()}
    model.set_submodule(name, stored_layer(layer, codec, stored, matrix.shape, original))


def quantize_in_place(model: PreTrainedModel, codec: WeightCodec, quantizer: LoadTimeQuantizer) -> None:
    """Quantize a model that is in memory, layer by layer. Raises what `to_quantize` does."""
    wanted = to_quantize(model, quantizer.modules_to_not_convert, quantizer.convert_vision_tower)
    for name, layer in wanted.layers.items():
        quantize_layer(model, name, layer.get_parameter("weight").detach(), codec)
    for name in wanted.experts:
        place, _, own = name.rpartition(".")
        quantizable(model, place).store(own, model.get_parameter(name).detach(), codec, device())


def put_empty_layers(model: PreTrainedModel, quantizer: LoadTimeQuantizer) -> None:
    """Replace layers of a model without data by quantized layers without data, of the size that the quantizer declares.

    Raises what `to_quantize` does.
    """
    wanted = to_quantize(model, quantizer.modules_to_not_convert, quantizer.convert_vision_tower)
    for name, layer in wanted.layers.items():
        shape = matrix_of(layer, layer.get_parameter("weight")).shape
        size = quantizer.declared_bytes({f"{name}.weight": tuple(shape)})
        stored = {"all": torch.empty(size, dtype=torch.uint8, device="meta")}
        model.set_submodule(name, stored_layer(layer, _EmptyCodec(), stored, shape))
    for name in wanted.experts:
        place, _, own = name.rpartition(".")
        shape = model.get_parameter(name).shape
        size = quantizer.declared_bytes({name: tuple(shape)}) // shape[0]
        stored = {"all": torch.empty(shape[0], size, dtype=torch.uint8, device="meta")}
        quantizable(model, place).hold(own, _EmptyCodec(), shape, stored)


class _EmptyCodec(WeightCodec):
    """Codec of plans, for tensors without data."""

    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        """Return a tensor without data."""
        return {"all": weight.new_empty(0, dtype=torch.uint8)}

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return a weight without data."""
        return stored["all"].new_empty(shape, dtype=torch.float32)


class QuantizeOnLoad(QuantizationConfigMixin):
    """Quantization config for `from_pretrained` that encodes weights with a codec as they are read."""

    def __init__(self, codec: WeightCodec, path: Path, skipped: Sequence[str] = (), senses: bool = False) -> None:
        """Take the codec, the directory of the model, and the modules that are not quantized; see `to_quantize`."""
        super().__init__(quant_method=METHOD)
        self.codec, self.path, self.skipped, self.senses = codec, path, skipped, senses
        self.nonfinite: list[str] = []

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for logs."""
        return {"quant_method": METHOD, "codec": type(self.codec).__name__}

    def prepare(self, model: PreTrainedModel) -> set[str]:
        """Prepare a model without data, and return the names of the weights to encode. Raises what `to_quantize` does."""
        return to_quantize(model, self.skipped, self.senses).weights

    def finish(self, model: PreTrainedModel) -> None:
        """Remove the mark of transformers for quantized models. Raises GymError for weights that are not finite."""
        if self.nonfinite:
            more = f" and {len(self.nonfinite) - 3} more" if len(self.nonfinite) > 3 else ""
            raise GymError(
                f"weights that are not finite: {', '.join(self.nonfinite[:3])}{more}",
                where=str(self.path),
                key="model.path",
            )
        for holder, names in (
            (model, ("hf_quantizer", "is_quantized", "quantization_method")),
            (model.config, ("quantization_config",)),
        ):
            for name in names:
                holder.__dict__.pop(name, None)


class PreQuantized(QuantizeOnLoad):
    """The same for a checkpoint that is quantized already: layers take its tensors as they are."""

    def __init__(self, codec: StoredFormat, path: Path) -> None:
        """Take the format and the directory of the model."""
        super().__init__(codec, path)
        self.format = codec

    def prepare(self, model: PreTrainedModel) -> set[str]:
        """Put layers in that hold the stored tensors; nothing is encoded."""
        prepare(model, self.path, self.format)
        return set()

    def finish(self, model: PreTrainedModel) -> None:
        """Check the stored tensors as well."""
        for name, module in stored_modules(model).items():
            floating = (tensor for tensor in module.buffers() if tensor.is_floating_point())
            if not all(tensor.float().isfinite().all() for tensor in floating):
                self.nonfinite.append(f"{name}.weight")
        super().finish(model)


class _Quantizer(HfQuantizer):
    """The quantizer interface of transformers: which weights are handed to `_Encode`."""

    quantization_config: QuantizeOnLoad

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:
        self.wanted = self.quantization_config.prepare(model)

    def param_needs_quantization(self, model: PreTrainedModel, param_name: str, **kwargs: Any) -> bool:
        return param_name in self.wanted

    def get_quantize_ops(self) -> ConversionOps:
        return _Encode(self.quantization_config)

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return True


class _Encode(ConversionOps):
    """Encodes one weight and puts the quantized layer into the model."""

    def __init__(self, config: QuantizeOnLoad) -> None:
        self.config = config

    def convert(
        self,
        input_dict: dict[str, Any],
        model: nn.Module,
        full_layer_name: str,
        missing_keys: set[str],
        **kwargs: Any,
    ) -> dict[str, Any]:
        (found,) = input_dict.values()
        weight: Tensor = found[0] if isinstance(found, list) else found
        missing_keys.discard(full_layer_name)
        if not weight.isfinite().all():
            self.config.nonfinite.append(full_layer_name)
            weight = torch.zeros_like(weight)  # the others are looked at before all of them are named
        place, _, own = full_layer_name.rpartition(".")
        if weight.dim() == 3:
            quantizable(model, place).store(own, weight, self.config.codec, device())
        else:
            again = partial(stored_tensor, self.config.path, full_layer_name)
            quantize_layer(model, place, weight, self.config.codec, again)
        return {}


AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = QuantizeOnLoad
AUTO_QUANTIZER_MAPPING[METHOD] = _Quantizer

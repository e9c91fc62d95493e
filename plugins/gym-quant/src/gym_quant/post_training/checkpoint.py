"""A quantized model on the disk, in the format of compressed-tensors: files that are filled as weights come, and back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from compressed_tensors import __version__ as version
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_core import GymError
from gym_quant.config.stored_layout import Scheme
from gym_quant.post_training.grid import Codes
from gym_torch.checkpoints import weight_shards
from gym_torch.model_files import weight_files

SCHEMES = "quantization.json"  #: what was done to each weight, and what came of it
EXPERTS = r"re:.*\.experts\.\d+\..*"  #: names of the linear layers of experts
TORCH = {code: dtype for dtype, code in weight_shards.CODES.items()}
T = TypeVar("T")


class Checkpoint:
    """Files of weights under a directory, in which each weight has its place before any is there."""

    def __init__(
        self, model: PreTrainedModel, schemes: Mapping[str, Scheme], names: Mapping[str, str], into: Path, most: int
    ) -> None:
        """Lay the files out: weights with a scheme as codes, all others as they are, in files of at most `most` bytes.

        `names` says what files call a weight that has a scheme, where they call it otherwise than the model that computes.

        Raises GymError where the family keeps a weight that has a scheme under another name, or joined with others.
        """
        self.into, self.names = into, names
        own = weight_shards.own_weights(model)
        whole = dict(weight_shards.on_disk(model, ((name, weight.to("meta")) for name, weight in own.items())))
        schemes = self.named(schemes)
        if moved := sorted(schemes.keys() - whole.keys()):
            raise GymError(
                f"{moved[0]} has another name in the files of {type(model).__name__}, and cannot be found there in a few bits",
                key="quantization",
                fix="quantize it as it is loaded instead: `model.quantization`",
            )
        self.numbers = {name: weight.numel() for name, weight in whole.items()}  #: how many each weight has
        empty = {name: weight for name, weight in whole.items() if name not in schemes}
        for name, scheme in schemes.items():
            code = weight_shards.CODES[whole[name].dtype]
            for part, (dtype, shape) in scheme.stored(name, tuple(whole[name].shape), code).items():
                empty[part] = torch.empty(shape, dtype=TORCH[dtype], device="meta")
        self.places = weight_shards.lay_out(empty, into, most)
        self.left = dict(self.places)
        self.model = model

    def named(self, of: Mapping[str, T]) -> dict[str, T]:
        """Return the same by the names that weights have in the files."""
        return {self.names.get(name, name): value for name, value in of.items()}

    def codes(self, name: str, codes: Codes) -> None:
        """Write a quantized weight."""
        for part, tensor in codes.tensors(self.names.get(name, name)).items():
            weight_shards.put(part, tensor, self.left, self.into)

    def keep(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Write weights that are not quantized, by their names in the model."""
        for name, weight in weight_shards.on_disk(self.model, weights):
            weight_shards.put(name, weight, self.left, self.into)

    def finish(self, base: Path, schemes: Mapping[str, Scheme]) -> None:
        """Write the configuration beside the weights. Raises GymError where one of them is missing."""
        if self.left:
            raise GymError(f"{len(self.left)} weights are missing: {sorted(self.left)[0]}", where=str(self.into))
        config = json.loads((base / "config.json").read_text(encoding="utf-8"))
        config["quantization_config"] = _config(self.model, schemes)
        (self.into / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _config(model: PreTrainedModel, schemes: Mapping[str, Scheme]) -> dict[str, Any]:
    """Return the `quantization_config` of `config.json`: what most weights have stands for all linear layers."""
    modules = {name.removesuffix(".weight"): scheme for name, scheme in schemes.items()}
    experts = set(map(modules.pop, [name for name in modules if ".experts." in name]))
    most = Counter(modules.values()).most_common(1)[0][0]
    products = [name for name, module in model.named_modules() if _multiplies(module)]
    groups = {f"group_{number}": _scheme(scheme, [EXPERTS]) for number, scheme in enumerate(experts - {most})}
    for number, scheme in enumerate(sorted(set(modules.values()), key=lambda scheme: scheme == most), len(groups)):
        names = ["Linear"] if scheme == most else [name for name in modules if modules[name] == scheme]
        groups[f"group_{number}"] = _scheme(scheme, names)
    return {
        "quant_method": "compressed-tensors",
        "dequantize": not most.symmetric,  # transformers leaves no room for packed zero points where it unpacks later
        "version": version,
        "format": _format(most),
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": [name for name in products if name not in modules],
        "kv_cache_scheme": None,
    }


def _multiplies(module: nn.Module) -> bool:
    """Return whether a runtime has a linear layer there: routers are one too, of a class of their own."""
    weight = module._parameters.get("weight")
    return weight is not None and weight.dim() == 2 and not isinstance(module, nn.Embedding)


def _scheme(scheme: Scheme, names: list[str]) -> dict[str, Any]:
    weights = QuantizationArgs(
        num_bits=scheme.bits,
        type="float" if scheme.floating else "int",
        symmetric=scheme.symmetric,
        strategy="group" if scheme.group else "channel",
        group_size=scheme.group or None,
    )
    inputs = QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True) if scheme.activations else None
    made = QuantizationScheme(targets=names, weights=weights, input_activations=inputs, format=_format(scheme))
    return made.model_dump(mode="json")


def _format(scheme: Scheme) -> str:
    return "float-quantized" if scheme.floating else "pack-quantized"


def read(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a checkpoint by name, as they are computed with."""
    told = json.loads((path / SCHEMES).read_text(encoding="utf-8"))
    schemes = {name: Scheme(**layer["scheme"]) for name, layer in told["layers"].items()}
    parts = {part: name for name, scheme in schemes.items() for part in scheme.stored(name, (1, 1), "F32")}
    held: dict[str, dict[str, Tensor]] = {}
    for file in weight_files(path):
        with safe_open(file, framework="pt") as weights:
            for part in weights.keys():  # noqa: SIM118 - it is no mapping
                if part in parts:
                    held.setdefault(parts[part], {})[part] = weights.get_tensor(part)
                else:
                    yield part, weights.get_tensor(part)
    for name, tensors in held.items():
        yield name, Codes.of(name, tensors, schemes[name]).weight()

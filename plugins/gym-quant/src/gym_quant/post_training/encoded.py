"""Writes a model as a quantizer of loaded models holds it in memory, in a format of Gym's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gym_core import Artifact, GymError, Run
from gym_quant.config.encoded import Encoded
from gym_quant.post_training import calibration, evidence
from gym_quant.post_training.calibration import Rows
from gym_quant.post_training.quantizer import SHARD, PostTrainingQuantizer, refuse_quantized, tell_left
from gym_quant.post_training.separate_experts import several_matrices
from gym_quant.post_training.walk import Walk, raised
from gym_torch.checkpoints import weight_shards
from gym_torch.model import mapped_weights
from gym_torch.model.decoder_layers import layers_of
from gym_torch.model_files import weight_files
from gym_torch.quantization.stored_formats import GYM
from gym_torch.quantization.weights import QuantizedMatrix, plain_state, quantized_layers
from gym_torch.recorded_components import told_of
from gym_torch.weight_names import in_files


class EncodedQuantizer(PostTrainingQuantizer):
    """Loads a model quantized, and writes what its layers store."""

    config: Encoded

    def restore(self, artifact: Artifact) -> dict[str, Tensor]:
        """Return the weights by name, in fp32, as they are computed with."""
        model = mapped_weights.load(artifact.path, dtype=torch.float32)
        tied = model.get_expanded_tied_weights_keys(all_submodels=True)
        return dict(plain_state(model, lambda name: name not in tied))

    @torch.no_grad()
    def _write(self, run: Run, base: Path, building: Path) -> dict[str, Any]:
        """Write configuration and weights; return what was done and measured."""
        refuse_quantized(base)
        before = mapped_weights.load(base, exact=True)
        if not self.config.encoder.convert_vision_tower:
            tell_left(before)
        numbers = {name: weight.numel() for name, weight in weight_shards.own_weights(before).items()}
        if odd := several_matrices(before):
            raise GymError(
                f"{type(before).__name__} stacks matrices in one weight ({odd[0]}), which are not encoded",
                where=str(base),
                key="quantization",
                fix="use rtn, gptq or awq",
            )
        samples = calibration.draw(self.config, run, base)
        after = mapped_weights.load(base, quantizer=self.config.encoder)
        layers = quantized_layers(after)
        names = in_files(before, [f"{name}.weight" for name in layers])
        tensors = {
            f"{names[f'{name}.weight']}_{key}": tensor
            for name, layer in layers.items()
            for key, tensor in parts(layer).items()
        }
        plain = {name: weight for name, weight in weight_shards.own_weights(before).items() if name not in names}
        written = tensors | dict(weight_shards.on_disk(before, plain.items()))
        left = weight_shards.lay_out({name: each.to("meta") for name, each in written.items()}, building, SHARD)
        for name, each in written.items():
            weight_shards.put(name, each, left, building)
        config = json.loads((base / "config.json").read_text(encoding="utf-8"))
        made = sorted({name.rpartition(".")[2] for name in tensors})
        config["quantization_config"] = {"format": GYM, "tensors": made, **told_of(self.config.encoder, "quantizer")}
        (building / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        stored = {name: sum(tensor.nbytes for tensor in parts(layer).values()) for name, layer in layers.items()}
        return {
            "method": self._name,
            "options": self.config.model_dump(mode="json"),
            "bits_per_weight": 8 * sum(stored.values()) / sum(numbers[f"{name}.weight"] for name in layers),
            "bits_per_weight_of_all": 8 * sum(each.nbytes for each in written.values()) / sum(numbers.values()),
            "file_bytes": sum(file.stat().st_size for file in weight_files(building)),
            "file_bytes_before": sum(file.stat().st_size for file in weight_files(base)),
            "samples": samples.told if samples else None,
            "holdout": evidence.compare(*(walked(each, samples.holdout) for each in (before, after)))
            if samples
            else None,
            "layers": {
                f"{name}.weight": {
                    "scheme": {"bits": round(8 * stored[name] / layer.weight.numel(), 2)},
                    **evidence.layer_error(before.get_parameter(f"{name}.weight").float(), layer.weight, None),
                }
                for name, layer in layers.items()
            },
        }


def parts(layer: QuantizedMatrix) -> dict[str, Tensor]:
    """Return what stands for a weight in a file: what its codec stores, and its shape."""
    return {**layer.stored, "shape": torch.tensor(layer.shape)}


def walked(model: Any, rows: Rows) -> Walk:
    """Return samples behind the last layer of a model. Raises what `Walk.check` does."""
    walk = Walk(model, rows)
    for number, layer in enumerate(layers_of(model)[2]):
        walk.forward(number, raised(layer))
    walk.check()
    return walk

"""Quantizes a finished model layer by layer, measures what came of it, and leaves nothing where that is not good enough."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_core import Artifact, GymError, Run
from gym_core.component import construct
from gym_core.files import remove
from gym_export import SafetensorsExporter
from gym_quant.config.base import PostTraining
from gym_quant.config.stored_layout import Scheme, fitted, linear
from gym_quant.post_training import calibration, evidence
from gym_quant.post_training import separate_experts as experts
from gym_quant.post_training.checkpoint import SCHEMES, Checkpoint, read
from gym_quant.post_training.layer_work import LayerWork
from gym_torch.checkpoints.base_model import base_of
from gym_torch.checkpoints.checkpoint_folders import MANIFEST, whole_by_one
from gym_torch.checkpoints.max_kl import check_kl
from gym_torch.checkpoints.open_artifact import quantized_from
from gym_torch.checkpoints.pooling_files import copy_pooling
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer
from gym_torch.console import say
from gym_torch.kernels import precision_probe
from gym_torch.language_part import in_language_part
from gym_torch.memory import malloc
from gym_torch.memory.memory_meter import Meter
from gym_torch.model import fingerprint, mapped_weights
from gym_torch.model.read_weights import read_weights
from gym_torch.model_files import weight_files
from gym_torch.recorded_components import passed_on
from gym_torch.weight_names import in_files

SHARD = int(5e9)  #: most bytes of a file of weights
BETTER = "more bits, smaller groups or another method: `gym quantize RUN --with gptq`; what was trained is there"


class PostTrainingQuantizer:
    """Writes a compressed-tensors checkpoint of a model, a decoder layer at a time."""

    def __init__(self, config: PostTraining) -> None:
        """Keep the options."""
        self.config = config

    def quantize(self, run: Run, artifact: Artifact, into: Path) -> Artifact:
        """Write the quantized model as the directory `into`, all or nothing, and return it; adapters are merged on the way.

        Quantizing the same thing again returns what is there. Beside one layer in fp32 and what the method needs for it, the
        memory is that of the samples between two layers.

        Raises:
            GymError: the model cannot be quantized, is quantized already, or the data are too few; the result is further from
                the model than `max_kl`; `into` holds something else; the disk does not take it.

        """
        source = self._source(run, artifact)
        details = {"quantization": self._name, **quantized_from(artifact, into), **passed_on(artifact)}
        made = Artifact(into, "model", details=details, task=artifact.task)
        if into.exists() and any(into.iterdir()):
            if _source_of(into) == source:
                say(f"{into} holds this model, quantized, already")
                return made
            raise GymError("the directory holds something else", where=str(into), fix="name another, or remove it")
        malloc.give_back_freed()
        meter, began = Meter(precision_probe.device()), time.monotonic()
        with (
            whole_by_one(into, "the quantized model", "the trained model") as building,
            _plain(artifact, into) as base,
        ):
            told = self._write(run, base, building)
            copy_tokenizer(base, building)
            copy_pooling(artifact.path, building)
            told |= {"source": source, "seconds": time.monotonic() - began, "peak_bytes": meter.peak()}
            if told["holdout"]:
                found = told["holdout"]["kl"]
                check_kl(found, self.config.max_kl, "the quantized model", str(artifact.path), BETTER)
            (building / SCHEMES).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
            text = evidence.beside(artifact.path, evidence.card(artifact, told))
            (building / "README.md").write_text(text, encoding="utf-8")
            replace(made, path=building).record()
        found = f", KL {told['holdout']['kl']:.4g}" if told["holdout"] else ""
        say(f"quantized to {into}: {told['bits_per_weight']:.2f} bits per weight{found}")
        return made

    def restore(self, artifact: Artifact) -> dict[str, Tensor]:
        """Return the weights by name, in fp32, as they are computed with."""
        return {name: weight.float() for name, weight in read(artifact.path)}

    @property
    def _name(self) -> str:
        return type(self.config).__name__

    @torch.no_grad()
    def _write(self, run: Run, base: Path, building: Path) -> dict[str, Any]:
        """Write configuration and weights; return what was done and measured."""
        refuse_quantized(base)
        model = mapped_weights.load(base, exact=True)
        tell_left(model)
        known = tuple(f"{name}." for name in experts.stacked(model))
        if odd := [name for name in experts.several_matrices(model) if not name.startswith(known)]:
            raise GymError(
                f"{type(model).__name__} stacks matrices in one weight ({odd[0]}) in a way that cannot be quantized",
                where=str(base),
                key="quantization",
                fix="quantize a model without experts; `gym export` writes this one as it is",
            )
        samples = calibration.draw(self.config, run, base)
        columns = _columns(model) | experts.columns(model)
        work = LayerWork(model, self._fitted(model), construct(self.config.method, self.config), samples)
        if samples and self.config.calibrates:
            calibration.enough(samples, max(columns.values()))
        work.choose()
        if len({work.schemes[name] for name in experts.columns(model)}) > 1:
            raise GymError(
                "experts of different bits cannot be read by transformers", key="quantization", fix="use gptq"
            )
        names = experts.file_names(model) | in_files(model, _columns(model))
        checkpoint = Checkpoint(model, work.schemes, names, building, SHARD)
        work.write(checkpoint)
        checkpoint.finish(base, work.schemes)
        _check_readable(building, base, work.schemes.values())
        sizes = {name: _size(place.shape, place.dtype) for name, place in checkpoint.places.items()}
        return {
            "method": self._name,
            "options": self.config.model_dump(mode="json"),
            **evidence.measured_bits(sizes, checkpoint.named(work.schemes), checkpoint.numbers),
            "file_bytes": _bytes(building),
            "file_bytes_before": _bytes(base),
            "samples": samples.told if samples else None,
            "holdout": work.compared(),
            "layers": checkpoint.named(work.told),
        }

    def _fitted(self, model: PreTrainedModel) -> dict[str, Scheme]:
        """Return how each weight that is quantized is written, by name, as the options say; experts are all written alike."""
        scheme, dense, of_experts = self.config.scheme(), _columns(model), experts.columns(model)
        if not dense:
            raise GymError(f"{type(model).__name__} has no linear layers to quantize", key="quantization")
        if of_experts and not scheme.symmetric:
            raise GymError(
                "experts with zero points cannot be read by transformers", key="quantization.sym", fix="true"
            )
        return fitted(scheme, dense) | dict.fromkeys(of_experts, scheme.fitted(*of_experts.values()))

    def _source(self, run: Run, artifact: Artifact) -> str:
        """Return a hash of everything that decides what is written and measured. Raises what the data plugin does."""
        data = calibration.fingerprint(self.config, run, base_of(artifact))
        options = self.config.model_dump(mode="json")
        told = [artifact.to_json() | {"path": ""}, self._name, options, data, run.recipe.train.seed]
        models = [fingerprint.of_model(path) for path in dict.fromkeys((artifact.path, base_of(artifact)))]
        return hashlib.sha256(json.dumps([told, models], sort_keys=True, default=str).encode()).hexdigest()


def tell_left(model: PreTrainedModel) -> None:
    """Say how much of a model is no part of its language model: of one that reads images that alone is quantized."""
    language = in_language_part(model)
    if left := sum(weight.numel() for name, weight in model.named_parameters() if not language(name)):
        say(f"the language model is quantized: {left:,} parameters beside it, which read images, stay as they are")


def refuse_quantized(base: Path) -> None:
    """Raise GymError where the model in a directory is quantized."""
    if "quantization_config" in json.loads((base / "config.json").read_text(encoding="utf-8")):
        raise GymError("the model is quantized already", where=str(base), fix="quantize the model it was made from")


def _check_readable(made: Path, base: Path, schemes: Iterable[Scheme]) -> None:
    """Raise GymError where the code of a family in transformers cannot load what was made of a model; no numbers are read.

    Without them compressed-tensors does not know the shapes of rows with one zero point each: such are not tried.
    """
    if any(not scheme.symmetric and not scheme.group for scheme in schemes):
        return
    try:
        with redirect_stderr(StringIO()):  # bars of compressed-tensors, which no option turns off
            read_weights(made, {"device_map": "meta", "local_files_only": True}, finite=lambda weight: True)
    except Exception as error:  # of the family, over layers whose weights are codes
        raise GymError(
            f"transformers could not load it quantized: {type(error).__name__}: {str(error).strip().splitlines()[0][:160]}",
            where=str(base),
            key="quantization",
            fix="quantize it as it is loaded instead: `model.quantization`",
        ) from error


def _columns(model: PreTrainedModel) -> dict[str, int]:
    """Return the columns of each weight of a linear layer of the decoder, by name."""
    language = in_language_part(model)
    return {
        f"{name}.weight": module.in_features
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and language(name) and linear(f"{name}.weight", tuple(module.weight.shape))
    }


def _source_of(path: Path) -> str:
    file = path / SCHEMES
    return str(json.loads(file.read_text(encoding="utf-8")).get("source")) if file.is_file() else ""


def _size(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in weight_files(path))


@contextmanager
def _plain(artifact: Artifact, into: Path) -> Iterator[Path]:
    """Give the directory of the plain model that an artifact is; an adapter is merged beside the target, for as long.

    Raises GymError where the model is for something else than text.
    """
    if artifact.task != "causal-lm":
        raise GymError(f"models for `{artifact.task}` cannot be quantized, only causal-lm", where=str(artifact.path))
    if artifact.kind == "model" and not (artifact.path / MANIFEST).exists():
        yield artifact.path
        return
    merged = into.with_name(f".{into.name}.merged")
    remove(merged)
    try:
        yield SafetensorsExporter().build().export(artifact, merged)
    finally:
        remove(merged)

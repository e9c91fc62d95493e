"""Whole models, and deltas over one base: what is read of them, and the model that is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoConfig

from gym_core import Artifact, GymError
from gym_deltasoup.sources.files import Change, Contribution, Weights
from gym_deltasoup.sources.inputs import Opened
from gym_deltasoup.sources.model_tensors import tensors_of_model
from gym_deltasoup.sources.spooled import spool
from gym_deltasoup.sources.stacks import Piece, configured, stacked
from gym_deltasoup.sources.tensor_slices import Stored
from gym_torch.checkpoints.pooling_files import copy_pooling
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer
from gym_torch.checkpoints.weight_shards import lay_out

SHARD = 5 * 10**9  #: bytes of a file of weights


class Part(NamedTuple):
    """Some merged numbers of a tensor."""

    tensor: str
    begin: int
    values: Tensor


class Models:
    """Whole models of one architecture; with a base, what they differ by from it."""

    dtype: torch.dtype | None = None
    stack: tuple[Piece, ...] = ()  #: what the first input is made of

    def __init__(self, inputs: Sequence[Opened], base: Path | None, scratch: Path) -> None:
        """Look at the headers of all files. Raises GymError where tensors differ in name, shape or number format."""
        self.first, self.stack = inputs[0].artifact.path, inputs[0].stack
        self.tokenizer = self.first
        self.base, all_of = self._read(inputs, base, scratch)
        self.layout = all_of[0]
        for each, tensors in zip(inputs[1:], all_of[1:], strict=True):
            same_tensors(each.name, tensors, inputs[0].name, self.layout)
        if self.base is not None:
            same_tensors(str(base), self.base, inputs[0].name, self.layout, formats=False)
        self.shapes = {name: each.shape for name, each in sorted(self.layout.items()) if each.dtype.is_floating_point}
        self.contributions: list[Contribution] = [Weights(tensors, self.base) for tensors in all_of]
        self._same_integers(inputs, all_of)

    def _read(
        self, inputs: Sequence[Opened], base: Path | None, scratch: Path
    ) -> tuple[dict[str, Stored] | None, list[dict[str, Stored]]]:
        """Return the tensors of the base, if there is one, and of each input."""
        of_base = None if base is None else numbers_of(base, str(base), "base")
        return of_base, [tensors_of_input(each) for each in inputs]

    @property
    def has_base(self) -> bool:
        """Whether a vector is what was changed."""
        return self.base is not None

    def store_as(self, dtype: torch.dtype) -> None:
        """Write numbers in this format; each is rounded once, from what was merged."""
        self.dtype = dtype

    def write(self, merged: Iterator[Part], into: Path, rank: int | None) -> dict[str, Any]:
        """Write a model directory, number for number as they come. Raises GymError for a rank, which whole models have not."""
        if rank is not None:
            raise GymError("only adapters have a rank, and whole models are merged", key="rank", fix="leave it out")
        into.mkdir(parents=True, exist_ok=True)
        meta = {
            name: torch.empty(
                each.shape, dtype=self.dtype if self.dtype and name in self.shapes else each.dtype, device="meta"
            )
            for name, each in self.layout.items()
        }
        places = lay_out(meta, into, SHARD)
        for part in merged:
            place = places[part.tensor]
            values = part.values
            if self.base is not None:
                values = values + self.base[part.tensor].read(part.begin, part.begin + len(values)).float()
            held = finite(part.tensor, values.to(place.dtype))
            _put(into / place.file, place.offset + part.begin * place.dtype.itemsize, held)
        for name, each in self.layout.items():
            if name not in self.shapes:
                _put(into / places[name].file, places[name].offset, each.read(0, each.numbers))
        self.configure(into)
        copy_tokenizer(self.tokenizer, into)
        copy_pooling(self.first, into)
        return {}

    def configure(self, into: Path) -> None:
        """Write the configuration, and the number format and the layers where these are others."""
        if self.dtype is None and not self.stack:
            shutil.copyfile(self.first / "config.json", into / "config.json")
            return
        told = (
            configured(self.stack)
            if self.stack
            else json.loads((self.first / "config.json").read_text(encoding="utf-8"))
        )
        if self.dtype is not None:
            told["torch_dtype" if "torch_dtype" in told else "dtype"] = str(self.dtype).removeprefix("torch.")
        text = json.dumps(told, indent=2)
        (into / "config.json").write_text(f"{text}\n", encoding="utf-8")

    def artifact(self, path: Path, base: str | None, details: Mapping[str, Any]) -> Artifact:
        """Return what was written."""
        return Artifact(path, "model", details={**({"base": base} if base else {}), **details})

    def _same_integers(self, inputs: Sequence[Opened], all_of: Sequence[Mapping[str, Stored]]) -> None:
        for name, each in self.layout.items():
            if name in self.shapes:
                continue
            wanted = each.read(0, each.numbers)
            for other, tensors in zip(inputs[1:], all_of[1:], strict=True):
                if not torch.equal(tensors[name].read(0, each.numbers), wanted):
                    why = f"{name} holds whole numbers, which have no mean, and those of {other.name} are others"
                    raise GymError(why, where=str(other.artifact.path), key="inputs")


class Deltas(Models):
    """Compressed deltas over one base. They are unpacked beside the result, and the result is a whole model."""

    def __init__(self, inputs: Sequence[Opened], base: Path | None, scratch: Path) -> None:
        """Unpack all. Raises GymError without the base, and where a delta changes what the base has not."""
        if base is None:
            why = "deltas are merged over the base that they belong to, and none is named"
            raise GymError(why, key="base", fix="name the model that they were made from")
        self.first = self.tokenizer = base
        self.base = self.layout = numbers_of(base, str(base), "base")
        self.shapes = {name: each.shape for name, each in sorted(self.layout.items()) if each.dtype.is_floating_point}
        self.changed = inputs[0].artifact.details.get("config", {})  #: in the configuration of the base, by all of them
        self.contributions = []
        for number, each in enumerate(inputs):
            changes = spool(each.artifact, base, scratch / f"{number}.fp32")
            for name, change in changes.items():
                if self.shapes.get(name) != change.shape:
                    had = "no such weight" if name not in self.shapes else f"one of shape {list(self.shapes[name])}"
                    why = f"{each.name} changes {name} of shape {list(change.shape)}, and the base has {had}"
                    raise GymError(why, where=str(each.artifact.path), key="inputs", fix="export it, and merge models")
            self.contributions.append(Change(changes))

    def configure(self, into: Path) -> None:
        """Write the configuration of the base as the deltas change it, such as positions that were scaled for training."""
        super().configure(into)
        if self.changed:
            told = AutoConfig.from_pretrained(into, local_files_only=True)
            told.get_text_config().update(self.changed)
            told.save_pretrained(into)


def tensors_of_input(each: Opened) -> dict[str, Stored]:
    """Return all tensors of a whole model, or of one that layers are put together to. Raises what `numbers_of` does."""
    if not each.stack:
        return numbers_of(each.artifact.path, each.name)
    return stacked(each.stack, [numbers_of(piece.path, each.name) for piece in each.stack])


def numbers_of(path: Path, name: str, key: str = "inputs") -> dict[str, Stored]:
    """Return all tensors of a model. Raises GymError where they are codes: a mean of these is not that of what they stand for."""
    if method := quantized_by(path):
        why = f"{name} is quantized ({method}), and codes of weights cannot be merged"
        raise GymError(why, where=str(path), key=key, fix="name what it was made from, and quantize the result")
    return tensors_of_model(path)


def quantized_by(path: Path) -> str:
    """Return the method that a model was quantized by, as its configuration has it; empty where it was not."""
    said = json.loads((path / "config.json").read_text(encoding="utf-8")).get("quantization_config")
    return str(said.get("quant_method") if isinstance(said, dict) else said) if said else ""


def same_tensors(
    name: str, tensors: Mapping[str, Stored], first: str, wanted: Mapping[str, Stored], formats: bool = True
) -> None:
    """Raise GymError where tensors are not those of the first input: by name, shape or number format."""
    for tensor in sorted({*tensors, *wanted}):
        if tensor not in tensors or tensor not in wanted:
            has, lacks = (name, first) if tensor in tensors else (first, name)
            fix = "merge models of one kind alone; where it is the copy of a tied weight, `gym export` leaves it out"
            raise GymError(f"{has} has {tensor}, and {lacks} has not", key="inputs", fix=fix)
        one, other = tensors[tensor], wanted[tensor]
        if one.shape != other.shape:
            why = f"{tensor} of {name} has the shape {list(one.shape)}, and that of {first} {list(other.shape)}"
            raise GymError(why, key="inputs", fix="merge models of one kind alone")
        if formats and one.dtype != other.dtype:
            why = f"{tensor} of {name} is in {one.dtype}, and that of {first} in {other.dtype}"
            raise GymError(why.replace("torch.", ""), key="inputs", fix="export all of them in one dtype")


def finite(name: str, values: Tensor) -> Tensor:
    """Return merged numbers. Raises GymError where one of them is beyond what their format holds."""
    if values.isfinite().all():
        return values
    why = f"what was merged of {name} is too large for {values.dtype}".replace("torch.", "")
    raise GymError(why, key="merger", fix="give a smaller scale or smaller weights, or export the inputs in fp32")


def _put(file: Path, offset: int, values: Tensor) -> None:
    with file.open("r+b") as data:
        data.seek(offset)
        data.write(memoryview(values.contiguous().view(torch.uint8).numpy()))

"""Whole models of different vocabularies, as models of one: embeddings and heads are written anew, row by row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from gym_core import GymError
from gym_deltasoup.config.vocabulary import TokenizerOptions
from gym_deltasoup.sources.inputs import Input, Opened
from gym_deltasoup.sources.models import Models, numbers_of, tensors_of_input
from gym_deltasoup.sources.tensor_slices import Stored
from gym_deltasoup.sources.vocabulary import KEY, ZERO, Member, Vocabulary, unified, with_ids
from gym_torch.checkpoints.weight_shards import pieces
from gym_torch.model.adapted import skeleton
from gym_torch.model.vocabulary import vocabulary_modules

ROWS = 2**20  #: numbers of rows that are in memory at a time


class OfOneVocabulary(Models):
    """Models whose tokenizers differ. The scratch folder holds their embeddings and heads with the rows of the result."""

    def __init__(self, vocabulary: Vocabulary, inputs: Sequence[Opened], base: Path | None, scratch: Path) -> None:
        """Look at all, and write the tables that differ. Raises what `Models` does."""
        self.vocabulary = vocabulary
        super().__init__(inputs, base, scratch)
        self.tokenizer = vocabulary.folder

    def _read(
        self, inputs: Sequence[Opened], base: Path | None, scratch: Path
    ) -> tuple[dict[str, Stored] | None, list[dict[str, Stored]]]:
        members = [tensors_of_input(each) for each in inputs]
        if base is not None:
            members.append(numbers_of(base, str(base), "base"))
        names = tables_of(self.first)
        for name in sorted(names & {name for tensors in members for name in tensors}):
            if not all(name in tensors for tensors in members):
                continue  # which is refused with its name
            tables = [tensors[name] for tensors in members]
            for number, tensors in enumerate(members):
                tensors[name] = self._moved(tables, number, scratch / f"{number}.{name}")
        return (members.pop() if base is not None else None), members

    def _moved(self, tables: Sequence[Stored], member: int, into: Path) -> Stored:
        """Write the table of a member with the rows of the result."""
        own = tables[member]
        heights = [table.shape[0] for table in tables]
        if any(table.shape[1:] != own.shape[1:] for table in tables):
            return own  # which is refused with its name
        sources = self.vocabulary.sources(member, heights)
        width = int(torch.Size(own.shape[1:]).numel())
        mapped = [_rows(table) for table in tables]
        total = torch.zeros(width, dtype=torch.float64)
        step = max(1, ROWS // width)
        with into.open("wb") as file:
            for begin in range(0, self.vocabulary.rows, step):
                rows = range(begin, min(begin + step, self.vocabulary.rows))
                found = _gathered([sources.get(row, ()) for row in rows], mapped, tables, width).to(own.dtype)
                total += found.double().sum(0)
                for piece in pieces(found):
                    file.write(piece)
            mean = (total / max(1, len(sources))).to(own.dtype)
            for row in sorted({*range(self.vocabulary.rows)} - sources.keys()):
                file.seek(row * width * own.dtype.itemsize)
                for piece in pieces(mean):
                    file.write(piece)
        return Stored(into, 0, own.dtype, (self.vocabulary.rows, *own.shape[1:]))

    def configure(self, into: Path) -> None:
        """Write the configuration with the size of the vocabulary, and numbers of tokens of the model that it comes from."""
        super().configure(into)
        told = _config(into)
        made = with_ids(told, _config(self.vocabulary.ids_of)) | {"vocab_size": self.vocabulary.rows}
        (into / "config.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


def vocabulary_of(
    options: TokenizerOptions,
    found: Sequence[Opened],
    given: Sequence[Input],
    base: tuple[str, Path] | None,
    first: str,
    scratch: Path,
) -> Vocabulary:
    """Return the vocabulary of what comes of these inputs and a base, its name and folder; `first` is that of the first input.

    Raises GymError where inputs are of a kind that has no vocabulary of its own, and what `unified` raises.
    """
    kind = found[0].artifact.kind
    if kind != "model":
        why = f"what is merged is of kind {kind}, and has the vocabulary of its base"
        raise GymError(why, key=KEY, fix="leave it out, or merge whole models: `gym export` makes one of any")
    members = [
        Member((one.name, str(each.path), str(one.artifact.path)), one.artifact.path)
        for one, each in zip(found, given, strict=True)
    ]
    if base is not None:
        members.append(Member((base[0], str(base[1])), base[1]))
    return unified(options, members, base[0] if base else first, scratch)


def tables_of(path: Path) -> set[str]:
    """Return what in a model has a row for each token, by name. Raises GymError where that is not known of its architecture."""
    told = _config(path)
    config: Any = CONFIG_MAPPING[told["model_type"]] if told.get("model_type") in CONFIG_MAPPING else None
    if config not in MODEL_FOR_CAUSAL_LM_MAPPING or "vocab_size" not in told:
        why = f"where {told.get('model_type')} keeps what belongs to a token is not known"
        raise GymError(why, where=str(path), key=KEY, fix="merge models of one tokenizer, without `tokenizer`")
    model = skeleton(config.from_dict(told), MODEL_FOR_CAUSAL_LM_MAPPING[config])
    ends = vocabulary_modules(model)
    for name, module in model.named_modules():  # such as what some architectures add in each layer
        if isinstance(module, nn.Embedding) and name not in ends and 2 * module.num_embeddings >= told["vocab_size"]:
            why = f"{name} may have rows for tokens too, which are not moved"
            raise GymError(why, where=str(path), key=KEY, fix="merge models of one tokenizer, without `tokenizer`")
    return {f"{name}.{part}" for name, module in ends.items() for part, _ in module.named_parameters()}


def _rows(table: Stored) -> np.memmap[tuple[int, int], np.dtype[np.uint8]]:
    """Return the bytes of each row, which are read where they are looked at."""
    size = table.numbers // max(1, table.shape[0]) * table.dtype.itemsize
    return np.memmap(table.file, np.uint8, "r", table.offset, (table.shape[0], size))


def _gathered(
    sources: Sequence[Sequence[tuple[int, int]]],
    mapped: Sequence[np.memmap[tuple[int, int], np.dtype[np.uint8]]],
    tables: Sequence[Stored],
    width: int,
) -> Tensor:
    """Return the mean of the rows that each row comes from: fp32 `[rows, width]`; zeros of none."""
    found = torch.zeros(len(sources), width)
    for member, table in enumerate(tables):
        at = [(row, of) for row, pairs in enumerate(sources) for one, of in pairs if one == member]
        if at:
            taken = torch.from_numpy(mapped[member][[of for _, of in at]]).view(table.dtype).float()
            found[[row for row, _ in at]] += taken
    counts = [max(1, sum(one != ZERO for one, _ in pairs)) for pairs in sources]
    return found / torch.tensor(counts)[:, None]


def _config(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return found

"""Whether a model has an embedding for every token of its tokenizer; those that are missing are added where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel

from gym_core import GymError
from gym_torch.console import say

KEY = "model.resize_vocab"
MULTIPLE = 64  #: of rows, as LLaMA-Factory has it


def check_vocabulary(model: PreTrainedModel, path: Path, own: Path, resize: bool, seed: int) -> None:
    """Compare the tokenizer in `path` with the embeddings of the model, and add rows where it has more tokens.

    New rows are drawn around the mean of the others, from `seed` alone; rows that were there for no token of the tokenizer in
    `own` become that mean. Raises GymError where rows are missing and `resize` is false.
    """
    tokens, rows = tokens_in(path), model.get_input_embeddings().weight.shape[0]
    if path != own:
        _to_mean(model, [row for row in sorted(_ids(path) - _ids(own)) if row < rows])
    if tokens <= rows:
        return
    if not resize:
        raise GymError(
            f"the tokenizer makes {tokens:,} tokens, and the model has embeddings for {rows:,}",
            where=str(path),
            key=KEY,
            fix="take the tokenizer of this model, or set `model: {resize_vocab: true}` to add embeddings",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.resize_token_embeddings(tokens, pad_to_multiple_of=MULTIPLE)
    say(f"the vocabulary grows from {rows:,} to {model.get_input_embeddings().weight.shape[0]:,} tokens")


@torch.no_grad()
def _to_mean(model: PreTrainedModel, new: Sequence[int]) -> None:
    """Have these rows of embeddings and head be the mean of all others; where nothing trained they hold whatever there is."""
    for module in vocabulary_modules(model).values() if new else ():
        others = torch.ones(len(module.weight), dtype=torch.bool)
        others[new] = False
        module.weight[new] = module.weight[others].float().mean(dim=0).to(module.weight.dtype)


def resize(model: PreTrainedModel, rows: int, multiple: int | None = None) -> None:
    """Give embeddings and head so many rows, or the next `multiple`; what new ones hold is for others to say."""
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(rows, pad_to_multiple_of=multiple, mean_resizing=False)


def vocabulary_modules(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the embeddings of a model and its head by their paths, the head of tied ones too."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    return {name: module for name, module in model.named_modules() if module in ends}


def tokens_in(path: Path) -> int:
    """Return how many rows the tokenizer in a folder needs, 0 where there is none. Raises GymError where it cannot be read."""
    return 1 + max(_ids(path), default=-1)  # some numbers may be left out


def _ids(path: Path) -> set[int]:
    file = path / "tokenizer.json"
    if not file.is_file():
        return set()
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no other class
        why = f"not a tokenizer: {str(error).splitlines()[0][:200]}"
        raise GymError(why, where=str(file), key="model.path", fix="fetch the model again") from error
    return {*tokenizer.get_vocab().values()}

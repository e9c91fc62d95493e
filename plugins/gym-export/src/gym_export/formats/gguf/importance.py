"""How much each column of a matrix matters, for k-quants: the mean square of what goes into it on texts (llama.cpp: imatrix).

A type of few bits chooses the scales of its blocks by the squared error of the numbers. With importances `mean(x_j^2)` of what
goes into a layer it weighs each column by them: the error of the layer's outputs, for inputs that do not correlate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from gym_core import GymError
from gym_core.files import expanded
from gym_export.formats.gguf.names import Place
from gym_export.source import Source
from gym_torch.model.adapted import assembled
from gym_torch.model.tasks import built

WINDOW = 512  #: tokens that are read at once
MOST = 65536  #: tokens that are read of a file
FILE = "imatrix/columns.safetensors"  #: beside the GGUF file; weights of no model, so in a folder of its own

Importances = Mapping[str, npt.NDArray[np.float32]]  #: by tensor of the file: [columns]


def tokens_of(source: Source, places: Mapping[str, Place], texts: Path) -> Tensor:
    """Return the tokens `[n]` of a file of plain text, which is read as one text.

    Raises GymError where it has too little of it, the model has no tokenizer, or experts, which see no common inputs.
    """
    if any(place.expert is not None for place in places.values()):
        raise GymError("importances of experts are not measured", key="export.imatrix", fix="leave `imatrix` out")
    if source.tokenizer is None:
        raise GymError("importances are measured on texts, and the model has no tokenizer", key="export.imatrix")
    if not expanded(texts).is_file():
        raise GymError("there is no such file of texts", where=str(texts), key="export.imatrix")
    text = expanded(texts).read_bytes().decode(errors="replace")
    tokens = source.tokenizer(text[: 16 * MOST], add_special_tokens=False)["input_ids"][:MOST]
    if len(tokens) < WINDOW:
        why = f"{len(tokens)} tokens are too few to measure importances on, which takes {WINDOW}"
        raise GymError(why, where=str(texts), key="export.imatrix", fix="name a longer file of plain text")
    return torch.tensor(tokens)


def measured(source: Source, places: Mapping[str, Place], texts: Path) -> Importances:
    """Return the importances of the columns of each matrix on the texts of a file. Raises what `tokens_of` does."""
    tokens = tokens_of(source, places, texts)
    plain = source.whole.plain()
    model = assembled(plain, built(plain.config, source.task)).float()
    squares: dict[str, Tensor] = {}

    def adding(tensor: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def add(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            inputs = given[0].reshape(-1, given[0].shape[-1]).double()
            squares[tensor] = squares.get(tensor, 0) + inputs.square().sum(0)

        return add

    for name, module in model.named_modules():
        place = places.get(f"{name}.weight")
        if place is not None and isinstance(module, nn.Linear):
            module.register_forward_pre_hook(adding(place.tensor))
    with torch.no_grad():
        for part in tokens.split(min(WINDOW, source.config.max_position_embeddings)):
            model(part[None], use_cache=False)
    return {name: (total / len(tokens)).float().numpy() for name, total in squares.items()}


def write(into: Path, found: Importances) -> None:
    """Write importances beside a file, so that they can be compared by at any time."""
    (into / FILE).parent.mkdir()
    save_file(dict(found), into / FILE)


def read(path: Path) -> Importances:
    """Return the importances beside a file; none where it was made without."""
    return load_file(path / FILE) if (path / FILE).is_file() else {}

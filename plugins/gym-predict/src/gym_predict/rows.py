"""The rows of a recipe as prompts and known answers: what stands before the last answer, and that answer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from gym_core import DataError, Recipe, RecipeError
from gym_core.files import write_atomically
from gym_data.examples import Example
from gym_data.kinds import Data
from gym_data.media import Medium
from gym_data.new_tokens import folder_of
from gym_data.row_reader import ShapeError


def _whole(sample: Any) -> Any:
    return sample


def _chosen(pair: Any) -> Example:
    """Return the preferred side of a pair."""
    end = pair.shared + pair.chosen
    return Example(pair.id, pair.tokens[:end], pair.trained[:end])


ANSWERED: dict[str, Callable[[Any], Any]] = {"conversation": _whole, "preference": _chosen}
"""Shapes of rows that have an answer, and how a sample becomes a conversation that ends with it."""


@dataclass(frozen=True)
class Known:
    """Prompts with the answers that are known."""

    prompts: list[list[int]]  #: tokens
    texts: list[str]  #: of the prompts, special tokens included
    answers: list[str]  #: without special tokens
    ends: frozenset[int]  #: the special tokens that end these answers
    images: list[list[Medium]]  #: of each prompt

    def write(self, path: Path) -> None:
        """Write one prompt a line, for what answers them."""
        rows = [
            {"tokens": tokens, **({"images": [dict(image) for image in images]} if images else {})}
            for tokens, images in zip(self.prompts, self.images, strict=True)
        ]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))

    @property
    def fingerprint(self) -> str:
        """Return a hash of prompts and answers."""
        shown = [[image["sha256"] for image in each] for each in self.images]
        return hashlib.sha256(json.dumps([self.prompts, self.answers, shown]).encode()).hexdigest()[:16]


def known(recipe: Recipe, everything: bool) -> Known:
    """Return the rows that a recipe holds out, or all of them, as its own template writes them.

    The answer of a pair is the chosen one. Raises RecipeError where it says of no row what is held out, and DataError where no
    row has a prompt and an answer, or one has images.
    """
    data, model = recipe.data, recipe.canonical(everything=True).get("model", {})
    if not isinstance(data, Data) or "path" not in model:
        raise RecipeError("the recipe names no data, or no model to tokenise for", key="data")
    path = folder_of(model, weights=False)
    if everything:
        data = data.in_memory()
    if (shape := _shape(data, path, recipe.train.seed)) is None:
        fix = "name rows of conversations or pairs: `data.sources=FILE rows=all`"
        raise DataError("rows have no answer that others could be compared with", key="data", fix=fix)
    prepared: Any = data.build(tokenizer=path, rows=shape, seed=recipe.train.seed)
    held = prepared.validation
    if held is None and not everything:
        fix = "name rows: `data.validation_sources=FILE`; or take all of them: `rows=all`"
        raise RecipeError("nothing is held out", key="data.validation", fix=fix)
    samples = _of((prepared.train, held) if everything else (held,))
    answers: Any = data.answers_alone()
    if answers is not data and shape == "conversation":
        names = {_row(sample) for sample in samples}
        apart = answers.build(tokenizer=path, rows=shape, seed=recipe.train.seed)
        samples = [sample for sample in _of((apart.train, apart.validation)) if _row(sample) in names]
    return _known([*map(ANSWERED[shape], samples)], data.tokenizer(path))


def _shape(data: Any, path: Path, seed: int) -> str | None:
    """Return which of the shapes that have an answer rows are of; None where they are of none."""
    for shape in ANSWERED:
        with suppress(ShapeError):
            data.build(tokenizer=path, rows=shape, seed=seed)
            return shape
    return None


def _of(parts: Iterable[Any]) -> list[Any]:
    return [part[number] for part in parts if part is not None for number in range(len(part))]


def _row(sample: Any) -> str:
    """Return the name of the row that a sample comes from, which may have become several."""
    return re.sub(r"#\d+$", "", sample.id)


def _known(samples: list[Any], tokenizer: Any) -> Known:
    prompts, texts, answers, ends = [], [], [], set()
    for sample in samples:
        edges = np.flatnonzero(np.diff(sample.trained.astype(np.int8), prepend=0, append=0))
        if not len(edges) or edges[-2] == 0:
            raise DataError(
                "a row has no prompt before its answer", where=sample.id, key="data", fix="name rows of conversations"
            )
        start, end = int(edges[-2]), int(edges[-1])
        prompt, answer = [int(token) for token in sample.tokens[:start]], sample.tokens[start:end]
        prompts.append(prompt)
        texts.append(tokenizer.decode(prompt))
        answers.append(tokenizer.decode(answer, skip_special=True))
        ends |= _end(answer, tokenizer)
    images = [list(sample.media) for sample in samples]
    if other := next((each["medium"] for own in images for each in own if each["medium"] != "image"), None):
        raise DataError(f"rows have {other}s, and predictions are asked of text and images", key="data.media")
    return Known(prompts, texts, answers, frozenset(ends), images)


def _end(answer: Any, tokenizer: Any) -> set[int]:
    """Return the special token that an answer ends with, none where it was cut.

    Those within it, as between thoughts and what is said, end nothing.
    """
    behind = takewhile(lambda token: not tokenizer.decode([token], skip_special=True).strip(), map(int, answer[::-1]))
    return set(islice((token for token in behind if tokenizer.written(token) in tokenizer.special), 1))


def predictions(known: Known, answers: Path) -> list[Mapping[str, str]]:
    """Return prompt, prediction and label of each row; one that could not be answered has an `error` too."""
    found: list[Mapping[str, str]] = []
    with answers.open(encoding="utf-8") as file:
        for text, label, line in zip(known.texts, known.answers, file, strict=True):
            answer = json.loads(line)
            error = {"error": answer["error"]} if "error" in answer else {}
            found.append({"prompt": text, "predict": answer.get("response", ""), "label": label, **error})
    return found

"""The whole way: open the sources, look into the cache, else read, tokenise, mix and split."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gym_core import DataError, cache_dir
from gym_data import cache
from gym_data.cache import Example, Examples, Store
from gym_data.config import DatasetConfig
from gym_data.encoders import ENCODERS
from gym_data.mixing import MIXES, hold_out, order_of
from gym_data.progress import counted
from gym_data.reading import Reader
from gym_data.report import report_of
from gym_data.tokenizer import Tokenizer

__all__ = ["Example", "Examples", "Prepared", "prepare"]
#: Fields that decide how rows become examples; the others are in the sources, the template and the tokenizer.
OPTIONS = {
    "cutoff", "max_samples", "mix", "mix_weights", "overlong", "split", "system", "template_options", "train_on",
    "validation", "variables", "bad_rows",
}  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """Examples to train on, perhaps some to validate on, and what became of the rows."""

    train: Examples
    validation: Examples | None
    fingerprint: str
    report: dict[str, Any]


def prepare(config: DatasetConfig, tokenizer: Path, rows: str = "conversation", seed: int = 0) -> Prepared:
    """Return the examples of a configuration for the tokenizer of a model directory.

    `rows` is the shape the algorithm learns from; `seed` decides what is drawn, mixed by weight and held out. Raises
    DataError where the sources cannot be read or nothing is left to learn.
    """
    reader = Reader(config, rows, seed)
    words = open_tokenizer(config, tokenizer)
    fingerprint = _fingerprint(reader, words)
    root = cache_dir() / "tokens"
    manifest = None if config.rebuild else cache.find(root, fingerprint)
    cached = manifest is not None
    if manifest is None:
        cache.remove(root, fingerprint)
        _build(reader, words, root, fingerprint)
        manifest = cache.find(root, fingerprint)
    if manifest is None:
        raise DataError("the token cache does not hold what was just written", where=str(root / fingerprint))
    folder = root / fingerprint
    train, validation = (Examples(folder, part, manifest["names"], rows) for part in ("train", "validation"))
    report = {**manifest["report"], "cached": cached}
    return Prepared(train, validation if report["validation"] else None, fingerprint, report)


def open_tokenizer(config: DatasetConfig, path: Path) -> Tokenizer:
    """Return the tokenizer with the configured template. Raises DataError where it lacks tokens the template needs."""
    template = config.template
    text = template.build() if template is not None else None
    words = Tokenizer(path, text, config.template_options)
    if template is not None:
        roles = {"bos_token": words.bos_id, "eos_token": words.eos_id}
        lacking = [token for token in template.needs if roles.get(token, words.token_id(token)) is None]
        if lacking:
            raise DataError(
                f"the template needs {', '.join(lacking)}, which the tokenizer of this model does not have",
                where=str(path),
                key="data.template",
                fix="leave `template` out to use the model's own, or take `default`, which needs no chat tokens",
            )
    return words


def _fingerprint(reader: Reader, words: Tokenizer) -> str:
    config = reader.config
    drawn = bool(config.validation or config.mix_weights or any(opened.samples for opened in reader.opened))
    identity = {
        "layout": cache.LAYOUT,
        "version": version("gym-data"),
        "shape": reader.shape,
        "sources": [opened.identity() for opened in reader.opened],
        "options": config.model_dump(mode="json", include=OPTIONS),
        "templates": words.templates,
        "tokenizer": words.fingerprint,
        "seed": reader.seed if drawn else None,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def _build(reader: Reader, words: Tokenizer, root: Path, fingerprint: str) -> None:
    """Read and tokenise everything into a cache folder."""
    store = Store(root)
    try:
        read = _write(reader, words, store)
        _something_left(reader, read.orders)
        config = reader.config
        orders = [order_of(order) for order in read.orders]
        mixed = MIXES[config.mix](orders, config.mix_weights, reader.seed)
        train, validation = hold_out(mixed, read.groups, config.validation, reader.seed)
        if not len(train):
            why = f"validation takes all {len(mixed)} examples"
            raise DataError(why, key="data.validation", fix="hold out fewer")
        store.extend(train=train, validation=validation)
        report = report_of(reader, read.lengths, read.learnt, train, validation, read.duplicates)
        store.finish(fingerprint, {"names": [opened.name for opened in reader.opened], "report": report})
    except BaseException:
        store.discard()
        raise


@dataclass
class _Read:
    """What is known of the sequences written so far."""

    orders: list[list[int]]  #: sequences of each source, in order, repeated where drawn again
    groups: list[int] = field(default_factory=list)  #: by sequence; equal for equal contents
    lengths: list[int] = field(default_factory=list)
    learnt: list[int] = field(default_factory=list)
    duplicates: int = 0  #: rows whose content came before


def _write(reader: Reader, words: Tokenizer, store: Store) -> _Read:
    read = _Read([[] for _ in reader.opened])
    known: dict[bytes, int] = {}
    for number, piece in enumerate(counted(ENCODERS[reader.shape](reader, words), "tokenising")):
        read.duplicates += piece.part == 0 and piece.key in known
        if piece.part == 0:
            reader.tallies[piece.source].noticed.update(piece.remarks)
        read.groups.append(known.setdefault(piece.key, len(known)))
        read.lengths.append(len(piece.tokens))
        read.learnt.append(int(piece.trained.sum()))
        read.orders[piece.source].extend([number] * piece.times)
        store.add(piece.tokens, piece.trained, (piece.source, piece.number, piece.part), piece.about)
    return read


def _something_left(reader: Reader, orders: list[list[int]]) -> None:
    """Raise DataError where a source gave nothing to learn from."""
    for opened, tally, order in zip(reader.opened, reader.tallies, orders, strict=True):
        if order:
            continue
        reasons = (tally.bad + tally.dropped).most_common(1)
        raise DataError(
            f"none of its {tally.rows} rows can be learnt from" if tally.rows else "the dataset holds no rows",
            where=opened.name,
            key="data.sources",
            fix=f"most often: {reasons[0][0]} ({reasons[0][1]} rows)" if reasons else "",
        )

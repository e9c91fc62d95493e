"""The whole way: open the sources, look into the cache, else read, tokenise, mix and split."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

from gym_core import DataError, PluginError, cache_dir
from gym_data import cache_eviction, token_cache
from gym_data.chat.render import DAY
from gym_data.config import DatasetConfig
from gym_data.encodings.encoders import encoded
from gym_data.examples import Example, Examples, mapped
from gym_data.kinds import Template
from gym_data.media import MediaReader
from gym_data.mixing import divide
from gym_data.provenance import answering, called, identity, maker
from gym_data.report import report_of, seen_in_training, without_figure
from gym_data.row_reader import Reader
from gym_data.rows import Tools
from gym_data.shapes import brought, example_of
from gym_data.streaming import Stream, StreamedData, streamed
from gym_data.token_cache import Store
from gym_data.tokenizer import Tokenizer

__all__ = ["Example", "Examples", "Prepared", "prepare"]
#: Fields that decide how rows become examples; sources, template and tokenizer are named beside them.
OPTIONS = {
    "cutoff", "max_samples", "mix", "mix_weights", "overlong", "split", "split_special_tokens", "system", "template_options",
    "train_on",    "validation", "variables", "bad_rows",
}  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """Examples to train on, perhaps some to validate on, and what became of the rows."""

    train: Examples
    validation: Examples | None
    fingerprint: str  #: of the examples: equal for equal ones, whoever made them
    report: dict[str, Any]
    key: str  #: names the folder in the cache, by everything that made them
    validation_parts: Mapping[str, Examples]  #: those to validate on, by the name of their source


def prepare(
    config: DatasetConfig,
    tokenizer: Path,
    rows: str = "conversation",
    seed: int = 0,
    day: date | None = None,
    branches: bool = False,
    made: bool = False,
    tools: Tools = (),
) -> Prepared | StreamedData:
    """Return the examples of a configuration for the tokenizer of a model directory.

    `rows` is the shape the algorithm learns from; `seed` decides what is drawn, mixed by weight and held out; `day` is what chat
    templates are told that ask for the date and `config` does not say, by default today; with `branches`, sequences of one
    conversation that begin alike are one `Branched` example; `made` says that another process of the run has just made them, and
    nothing is made again; `tools` are what prompts offer whose rows offer none. Raises DataError where the sources cannot be read
    or nothing is left to learn.
    """
    day = date.fromisoformat(config.date) if config.date else day or datetime.now(UTC).date()
    opened = open_tokenizer(config, tokenizer, day)
    if config.streaming:
        return _streamed(config, opened, tokenizer, rows, seed, day, branches, tools)
    most = cache_eviction.limit()
    reader = Reader(config, rows, seed, branches, tools)
    key = key_of(reader, opened, day)
    root = cache_dir() / "tokens"
    manifest = None if config.rebuild and not made else token_cache.find(root, key)
    cached = manifest is not None
    if manifest is None:
        with token_cache.writing(root):
            _build(reader, opened, root, key)
            cache_eviction.make_room(root, most, key)
        manifest = token_cache.awaited(root, key)
    if manifest is None:
        raise DataError("the token cache does not hold what was just written", where=str(root / key))
    arrays = partial(mapped, root / key)
    names = manifest["names"]
    train, validation = (
        Examples(arrays, part, names, example_of(rows), opened.media) for part in ("train", "validation")
    )
    report, parts = {**manifest["report"], "cached": cached}, validation.by_source()
    if config.validation_apart and len(validation):
        asked = reader.opened[len(config.sources) if config.validation_sources else 0 :]
        report["notes"] = [*report["notes"], *without_figure([source.name for source in asked], parts)]
    return Prepared(
        train,
        validation if report["validation"] else None,
        token_cache.content(manifest),
        report,
        key,
        parts,
    )


def _streamed(
    config: DatasetConfig,
    opened: Tokenizer,
    tokenizer: Path,
    rows: str,
    seed: int,
    day: date,
    branches: bool,
    tools: Tools,
) -> StreamedData:
    """Return windows of rows; what `validation_sources` hold is read whole before."""
    validation = None
    if config.validation_sources:
        whole = {"streaming": False, "sources": config.validation_sources, "validation_sources": []}
        validation = prepare(config.model_copy(update=whole), tokenizer, rows, seed, day, branches, tools=tools)
    reader = Reader(config.model_copy(update={"validation_sources": []}), rows, seed, branches, tools)
    made_by = {
        **made_from(reader, opened, day),
        "seed": seed,
        "validation": validation.fingerprint if validation else "",
    }
    return streamed(Stream(reader, opened), made_by, validation.train if validation else None)


def open_tokenizer(config: DatasetConfig, path: Path, day: date | None = None) -> Tokenizer:
    """Return the tokenizer with the configured template, which is told this day, or today.

    Raises DataError where it lacks tokens the template needs.
    """
    told = {**config.template_options, DAY: (day or datetime.now(UTC).date()).isoformat()}
    media = None
    if config.media:
        with answering(config.media, "`build`"):
            media = config.media.build(path=path)
    return tokenizer_with(config.template, path, told, config.split_special_tokens, media)


def tokenizer_with(
    template: Template | None,
    path: Path,
    values: Mapping[str, Any] | None = None,
    split_special_tokens: bool = True,
    media: MediaReader | None = None,
) -> Tokenizer:
    """Return the tokenizer of a model with a template, or with the model's own; see `Tokenizer`.

    Raises DataError where it lacks tokens the template needs.
    """
    text = template_text(template, path) if template else None
    tokenizer = Tokenizer(path, text, values, split_special_tokens, media)
    if template is not None:
        roles = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        with answering(template, "`lacking`"):
            lacking = template.lacking(lambda token: roles.get(token, tokenizer.token_id(token)) is not None)
        if lacking:
            raise DataError(
                f"the {called(template)} needs {', '.join(lacking)}, which the tokenizer of this model does not have",
                where=str(path),
                key="data.template",
                fix="leave `template` out to use the model's own, or take `default`, which needs no chat tokens",
            )
    return tokenizer


def template_text(template: Template, path: Path) -> str | None:
    """Return the text of a template for a model in this directory; None where the model's own is taken.

    Raises PluginError where the template is no text.
    """
    with answering(template, "`build`"):
        text = template.build()
    if text is None and template.encoders():
        return None
    if not isinstance(text, str):
        raise PluginError(
            f"the {called(template)} returned a {type(text).__name__} where its kind promises a text",
            key="data.template",
            fix=f"let {type(template).__name__}.build return the text of a jinja template",
        )
    return None if template.stands_in and _written_alike(Tokenizer(path), Tokenizer(path, text)) else text


def _written_alike(own: Tokenizer, other: Tokenizer) -> bool:
    """Whether a model has a chat template which writes turns, and what comes before an answer, as the other one does."""
    if "default" not in own.templates:
        return False
    asked, answered = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}
    tried = ([{"role": "system", "content": "three"}, asked], [asked], [asked, answered, asked])
    try:
        return all(own.render(turns, True) == other.render(turns, True) for turns in tried)
    except ValueError:  # one of them takes no such conversation
        return False


def key_of(reader: Reader, tokenizer: Tokenizer, day: date) -> str:
    """Return what names the examples in the cache: a hash of all that makes them, this package and those it rests on included."""
    config = reader.config
    drawn = bool(config.validation or config.mix_weights or any(opened.samples for opened in reader.opened))
    made_by = {
        **made_from(reader, tokenizer, day),
        "layout": token_cache.LAYOUT,
        "code": maker("gym_data"),
        "python": sys.version_info[:2],
        "sources": [opened.identity() for opened in reader.opened],
        "of them for validation": len(config.validation_sources),
        "template": identity(config.template) if config.template else None,
        "reader of media": identity(config.media) if config.media else None,
        "seed": reader.seed if drawn else None,
    }
    return hashlib.sha256(json.dumps(made_by, sort_keys=True).encode()).hexdigest()[:32]


def made_from(reader: Reader, tokenizer: Tokenizer, day: date) -> dict[str, Any]:
    """Return the options that make examples of rows, as plain data."""
    template = reader.config.template
    dated = any("strftime_now" in text for text in tokenizer.templates.values()) or (template and template.dated())
    return {
        "shape": [reader.shape, reader.branches],
        "shape is of": maker(reader.shape.partition(".")[0].partition(":")[0]) if brought(reader.shape) else None,
        "tools": list(reader.tools),
        "options": reader.config.model_dump(mode="json", include=OPTIONS),
        "day": day.isoformat() if dated else None,
        "media": tokenizer.media.fingerprint if tokenizer.media else None,
        "tokenizer": tokenizer.fingerprint,
        "template_spec": {
            **tokenizer.template_spec.data,
            "values": {name: told for name, told in tokenizer.template_spec.values.items() if name != DAY},
        },
    }


def _build(reader: Reader, tokenizer: Tokenizer, root: Path, key: str) -> None:
    """Read and tokenise everything into a cache folder."""
    into, old = Store(root), os.path.lexists(root / key)
    try:
        read = encoded(reader, tokenizer, into)
        _something_left(reader, read.orders)
        config = reader.config
        train, validation = divide(read.orders, read.groups, config, reader.seed, read.rows)
        if not len(train):
            why = f"validation takes all {len(validation)} examples"
            raise DataError(why, key="data.validation", fix="hold out fewer")
        into.extend(train=train, validation=validation)
        report = report_of(reader, read.lengths, read.learnt, train, validation, read.duplicates)
        report["notes"] += seen_in_training(train, validation, read.groups)
        into.finish(key, {"names": [opened.name for opened in reader.opened], "report": report}, replace=old)
    except BaseException:
        into.discard()
        raise


def _something_left(reader: Reader, orders: Sequence[Sequence[object]]) -> None:
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

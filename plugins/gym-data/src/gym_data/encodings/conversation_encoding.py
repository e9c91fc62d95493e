"""From structured rows to sequences of tokens with a mask of what is trained on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from typing import Any, TypeVar

import numpy as np

from gym_core import GymError
from gym_data.chat.chat_rendering import RenderRequest, RenderResult
from gym_data.chat.loss_masks import Rendered
from gym_data.chat.template_pool import WORKERS
from gym_data.encodings.shared_prefixes import Segments, joined
from gym_data.media import BEYOND, MediaReader, shown, whole, with_paths
from gym_data.row_reader import Reader, Record
from gym_data.rows import Conversation, Feedback, JudgedText, Message, Preference, Prompt, Segmented, Structured
from gym_data.tokenizer import Mask, Tokenizer, Tokens

BATCH = 256  #: rows tokenised at a time
TOO_LONG = "longer than the cutoff"
NOTHING = "nothing to learn within the cutoff"
ITS_MEDIA = "its media"  #: what refuses a row
_More = TypeVar("_More")


@dataclass(frozen=True)
class Piece:
    """One sequence, and which row it came from."""

    tokens: Tokens
    trained: Mask
    source: int
    number: int
    part: int  #: from 0, where a row gave several
    times: int
    key: bytes
    about: Mapping[str, Any] | None = None  #: what else its example has, see `gym_data.examples.KINDS`
    remarks: Sequence[str] = ()  #: what the report counts about its row
    segments: Segments = ()  #: where its tokens are those of several sequences, see `gym_data.encodings.shared_prefixes`


def encode_conversations(reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield the sequences of all conversations, cut to length; those with nothing to learn are counted and left out."""

    def told(row: Structured) -> list[_Told]:
        return [_Told(row, reader.config.train_on)] if isinstance(row, Conversation) else []

    return _branched(_sequences(reader, tokenizer, told), reader)


def encode_feedback(reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield labelled conversations as `encode_conversations` does; trained on is the answer that was labelled, the last.

    A pair is a good answer and a bad one. Of plain text all is trained on.
    """

    def told(row: Structured) -> list[_Told]:
        if isinstance(row, Preference):
            return [_Told(side, "last", {"desirable": side is row.chosen}) for side in (row.chosen, row.rejected)]
        if isinstance(row, JudgedText):
            return []
        assert isinstance(row, Feedback)
        return [_Told(row.conversation, "last", {"desirable": row.desirable})]

    return _sequences(reader, tokenizer, told)


@dataclass(frozen=True)
class _Told:
    """A conversation, which of its answers are trained on, and what else there is to say of it."""

    conversation: Conversation
    train_on: str
    about: Mapping[str, Any] | None = None


def _sequences(reader: Reader, tokenizer: Tokenizer, told: Callable[[Structured], list[_Told]]) -> Iterator[Piece]:
    media = tokenizer.media

    def requests(record: Record) -> tuple[Record, list[_Told], list[RenderRequest]]:
        several = told(record.row)
        return record, several, [_request(reader, each.conversation, each.train_on) for each in several]

    def parts_of(record: Record, each: _Told, found: RenderResult) -> list[tuple[Mapping[str, Any] | None, Rendered]]:
        if media is None:
            return [(each.about, text) for text in found.sequences]
        shows = shown(each.conversation.media, found.sequences, media, reader.opened[record.source].folder)
        return [({**(each.about or {}), "media": own}, text) for own, text in shows]

    for batch in rendered(reader, tokenizer, (map(requests, batch) for batch in batches(reader.records(), BATCH))):
        for record, _, _ in batch:
            told_of: dict[str, Any] = {"media": []} if media else {}
            if isinstance(record.row, Segmented):
                piece = of_segments(record, record.row, tokenizer, reader)
                yield from cut(replace(piece, about=told_of or None), reader)
            elif isinstance(record.row, JudgedText):
                piece = of_segments(record, Segmented(((record.row.text, True),), begun=True), tokenizer, reader)
                judged = {"desirable": record.row.desirable, **told_of}
                yield from cut(replace(piece, about=judged, remarks=record.row.remarks), reader)
        owners: list[tuple[Record, int, Mapping[str, Any] | None]] = []
        texts: list[Rendered] = []
        for record, several, found in batch:
            for each in found:
                if not each.sequences:
                    reader.tallies[record.source].dropped["no answer is to be learnt"] += 1
                reader.tallies[record.source].parted += len(each.sequences) > 1
            try:
                parts = [part for each, own in zip(several, found, strict=True) for part in parts_of(record, each, own)]
            except ValueError as error:
                reader.bad(record.source, record.number, error, ITS_MEDIA)
                continue
            owners.extend((record, part, about) for part, (about, _) in enumerate(parts))
            texts.extend(text for _, text in parts)
        for (record, part, about), (tokens, trained) in zip(owners, tokenizer.encode_rendered(texts), strict=True):
            reader.tallies[record.source].unclosed += not tokenizer.closes(tokens, trained)
            origin = record.source, record.number, part, record.times, record.key
            yield from cut(Piece(tokens, trained, *origin, about, record.row.remarks), reader, media)


def _branched(pieces: Iterable[Piece], reader: Reader) -> Iterator[Piece]:
    """Yield sequences, those of one row that begin alike as one where that is wanted, and count what it saves."""
    for _, group in groupby(pieces, key=lambda piece: (piece.source, piece.number)):
        own = list(group)
        if len(own) == 1:
            yield replace(own[0], segments=((len(own[0].tokens), None),)) if reader.branches else own[0]
            continue
        together = list(joined([(piece.tokens, piece.trained) for piece in own], reader.config.cutoff))
        tally = reader.tallies[own[0].source]
        tally.apart += sum(len(piece.tokens) for piece in own)
        tally.joined += sum(len(each.tokens) for each in together)
        if reader.branches:
            for part, each in enumerate(together):
                yield replace(own[0], tokens=each.tokens, trained=each.trained, part=part, segments=each.segments)
        else:
            yield from own


def rendered(
    reader: Reader, tokenizer: Tokenizer, asked: Iterable[Iterable[tuple[Record, _More, Sequence[RenderRequest]]]]
) -> Iterator[list[tuple[Record, _More, list[RenderResult]]]]:
    """Yield the records of each batch whose conversations the chat template takes, all of each, and what it makes of them.

    The others are bad rows. What the template leaves out is counted. Batches are rendered in `data.processes` processes while
    the ones before are used; neither the order nor the first error depends on how many.
    """
    count = reader.config.rendering_processes
    pending: deque[
        tuple[list[tuple[Record, _More, Sequence[RenderRequest]]], Future[list[RenderResult | ValueError]]]
    ] = deque()
    broken: GymError | None = None
    coming, ended = iter(asked), False
    found = partial(tokenizer.found, to_first=reader.config.bad_rows == "stop")
    with ThreadPoolExecutor(count) as ahead, WORKERS.at_work() as workers:
        while pending or not ended:
            if not ended:
                try:
                    batch = next(coming, None)
                    several = None if batch is None else list(batch)
                except GymError as error:  # what was read before comes first, and what is wrong with it
                    several, broken = None, error
                ended = several is None
                if several:
                    flat = [each for _, _, conversations in several for each in conversations]
                    pending.append((several, ahead.submit(found, flat, workers)))
            if pending and (ended or len(pending) > count):
                done, answers = pending.popleft()
                yield _kept(reader, tokenizer, done, iter(answers.result()))
    if broken:
        raise broken


def _kept(
    reader: Reader,
    tokenizer: Tokenizer,
    asked: list[tuple[Record, _More, Sequence[RenderRequest]]],
    answers: Iterator[RenderResult | ValueError],
) -> list[tuple[Record, _More, list[RenderResult]]]:
    kept = []
    for record, more, conversations in asked:
        found, refused = [], None
        for answer in islice(answers, len(conversations)):
            if isinstance(answer, ValueError):
                refused = refused or answer
            else:
                found.append(answer)
        if refused:
            reader.refused(record, refused)
            continue
        tally = reader.tallies[record.source]
        tally.lost.update({what for each in found for what in each.lost})
        tally.spelt += any(tokenizer.quotes(text) for each in found for text in each.sequences)
        kept.append((record, more, found))
    return kept


def encode_prompts(reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield prompts as they stand before an answer, with their rows; nothing of them is trained on, nothing cut off."""
    media = tokenizer.media

    def requests(record: Record) -> tuple[Record, RenderRequest, list[RenderRequest]]:
        prompt = _prompt(reader, record)
        return record, prompt, [prompt]

    for batch in rendered(reader, tokenizer, (map(requests, batch) for batch in batches(reader.records(), BATCH))):
        kept: list[tuple[Record, RenderRequest, Rendered, dict[str, Any]]] = []
        for record, prompt, found in batch:
            assert isinstance(record.row, Prompt)
            text, row, more = found[0].sequences[0], record.row.row, {}
            if media is not None:
                named, folder = record.row.conversation.media, reader.opened[record.source].folder
                try:
                    ((own, text),) = shown(named, [text], media, folder)
                except ValueError as error:
                    reader.bad(record.source, record.number, error, ITS_MEDIA)
                    continue
                row, more = with_paths(row, named, own), {"media": own}
            kept.append((record, prompt, text, {"row": row, **more}))
        encoded = tokenizer.encode_rendered([text for _, _, text, _ in kept])
        for (record, prompt, _, more), (tokens, none) in zip(kept, encoded, strict=True):
            if len(tokens) > reader.config.cutoff:
                reader.tallies[record.source].dropped[TOO_LONG] += 1
                continue
            about = {"messages": prompt.messages, "tools": prompt.tools, "values": prompt.values, **more}
            yield Piece(tokens, none, record.source, record.number, 0, record.times, record.key, about)


def _prompt(reader: Reader, record: Record) -> RenderRequest:
    assert isinstance(record.row, Prompt)
    conversation = record.row.conversation
    messages = with_system(conversation.messages, reader.config.system)
    return RenderRequest(messages, conversation.tools or reader.tools, prompt=True, values=conversation.values)


def _request(reader: Reader, conversation: Conversation, train_on: str) -> RenderRequest:
    messages = with_system(conversation.messages, reader.config.system)
    muted = frozenset(index + len(messages) - len(conversation.messages) for index in conversation.muted)
    answers = replace(conversation, messages=tuple(messages)).answers
    wanted = [index for index in (answers[-1:] if train_on == "last" else answers) if index not in muted]
    return RenderRequest(messages, conversation.tools, wanted, train_on == "all", values=conversation.values)


def with_system(messages: Sequence[Message], system: str | None) -> list[Message]:
    """Return the messages, after a system message where they have none."""
    given = not system or messages[0]["role"] == "system"
    return list(messages) if given else [{"role": "system", "content": system}, *messages]


def cut(piece: Piece, reader: Reader, media: MediaReader | None = None) -> Iterator[Piece]:
    """Yield the piece within the cutoff, unless nothing of it remains to be trained on, or an image is cut off."""
    config, tally = reader.config, reader.tallies[piece.source]
    if len(piece.tokens) > config.cutoff:
        if config.overlong == "drop":
            tally.dropped[TOO_LONG] += 1
            return
        if media and not whole(piece.tokens, config.cutoff, media.tokens):
            tally.dropped[BEYOND] += 1
            return
        tally.truncated += 1
        piece = replace(piece, tokens=piece.tokens[: config.cutoff], trained=piece.trained[: config.cutoff])
    if piece.trained.any():
        yield piece
    else:
        tally.dropped[NOTHING] += 1


def of_segments(record: Record, row: Segmented, tokenizer: Tokenizer, reader: Reader) -> Piece:
    """Return the sequence of a row that says itself which of its texts are learnt; each is encoded by itself."""
    everything, tally = reader.config.train_on == "all", reader.tallies[record.source]
    tally.spelt += any(tokenizer.splits(text) for text, _ in row.parts)
    encoded = tokenizer.encode_batch([text for text, _ in row.parts])
    begin = tokenizer.document_start if row.begun else []
    if encoded[0][: len(begin)] != begin:
        encoded[0] = [*begin, *encoded[0]]
    end = [] if tokenizer.eos_id is None or not row.ended else [tokenizer.eos_id]
    if encoded[-1][-1:] != end:
        encoded[-1] = [*encoded[-1], *end]
    tokens = np.asarray([token for ids in encoded for token in ids], dtype=np.int32)
    learnt = [learnt or everything for _, learnt in row.parts]
    trained = np.repeat(learnt, [len(ids) for ids in encoded])
    trained[:1] = False  # nothing comes before it
    document = row.begun and not row.ended  # need not be closed
    tally.unclosed += not document and not tokenizer.closes(tokens, trained)
    return Piece(tokens, trained, record.source, record.number, 0, record.times, record.key)


def batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield the items, so many at a time."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch

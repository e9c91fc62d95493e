"""From documents to sequences of tokens, all of which is trained on: one by one, or joined and cut into blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np

from gym_data.chat.chat_rendering import RenderRequest
from gym_data.encodings.conversation_encoding import BATCH, Piece, batches, cut, rendered
from gym_data.row_reader import Reader, Record
from gym_data.rows import Conversation, Text
from gym_data.tokenizer import Mask, Tokenizer, Tokens


def encode_texts(reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield documents, each closed by the end-of-text token: one by one, or joined and cut into blocks."""
    documents = _documents(reader, tokenizer)
    return (
        _blocks(documents, reader.config.cutoff)
        if reader.config.split == "blocks"
        else (piece for document in documents for piece in cut(document, reader))
    )


def _documents(reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield texts closed by the end-of-text token, and conversations as their template writes them; all of it is trained on."""
    end = [] if tokenizer.eos_id is None else [tokenizer.eos_id]

    def requests(record: Record) -> tuple[Record, None, list[RenderRequest]]:
        row = record.row
        if not isinstance(row, Conversation):
            return record, None, []
        return record, None, [RenderRequest(row.messages, row.tools, row.answers, True, values=row.values)]

    for batch in rendered(reader, tokenizer, (map(requests, batch) for batch in batches(reader.records(), BATCH))):
        rows = [record.row for record, _, _ in batch]
        for record, _, _ in batch:
            if isinstance(record.row, Text):
                reader.tallies[record.source].spelt += tokenizer.splits(record.row.text)
        documents = iter(tokenizer.encode_batch([row.text for row in rows if isinstance(row, Text)]))
        chats = iter(tokenizer.encode_rendered([found[0].sequences[-1] for _, _, found in batch if found]))
        for record, _, found in batch:
            if found:
                tokens, _ = next(chats)
            else:
                tokens = _document(tokenizer.document_start, next(documents), end)
            yield Piece(tokens, _all(tokens), record.source, record.number, 0, record.times, record.key)


def _document(begin: list[int], text: list[int], end: list[int]) -> Tokens:
    """Return the tokens of a text between those that begin and end it, which it may bring itself."""
    begin = [] if text[:1] == begin else begin
    end = [] if text[-1:] == end else end
    return np.asarray([*begin, *text, *end], dtype=np.int32)


def _blocks(documents: Iterable[Piece], size: int) -> Iterator[Piece]:
    """Join the documents of each source and cut them into blocks; the last block of a source may be shorter."""
    for source, own in groupby(documents, key=lambda document: document.source):
        number, length = 0, 0
        held: list[Tokens] = []
        for document in _rounds(own):
            held.append(document.tokens)
            length += len(document.tokens)
            if length >= size:
                joined = np.concatenate(held)
                full = length - length % size
                for start in range(0, full, size):
                    number += 1
                    yield from _block([joined[start : start + size]], source, number - 1, size)
                held, length = [joined[full:]], length - full
        yield from _block(held, source, number, size)


def _rounds(documents: Iterable[Piece]) -> Iterator[Piece]:
    """Yield all documents, then again those that are drawn twice, and so on: none beside itself while there is another."""
    again = []
    for document in documents:
        yield document
        if document.times > 1:
            again.append(document)
    for number in range(1, max((document.times for document in again), default=0)):
        yield from (document for document in again if document.times > number)


def _block(held: list[Tokens], source: int, before: int, size: int) -> Iterator[Piece]:
    tokens = np.concatenate(held) if held else np.zeros(0, dtype=np.int32)
    if len(tokens) > 1:  # a single token has nothing before it to be predicted from
        key = hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()
        yield Piece(tokens, _all(tokens), source, before + 1, 0, 1, key)


def _all(tokens: Tokens) -> Mask:
    trained = np.ones(len(tokens), dtype=bool)
    trained[:1] = False
    return trained

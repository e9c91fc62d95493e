"""From pairs to sequences of tokens: what both sides begin with, once, and the rest of each. Their answers are trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gym_data.chat.chat_rendering import RenderRequest
from gym_data.chat.loss_masks import Rendered
from gym_data.encodings.conversation_encoding import (
    BATCH,
    ITS_MEDIA,
    NOTHING,
    TOO_LONG,
    Piece,
    batches,
    rendered,
    with_system,
)
from gym_data.formats.parsing import UntrainableRowError
from gym_data.media import BEYOND, MediaReader, Medium, shown, whole
from gym_data.row_reader import Reader, Record
from gym_data.rows import Conversation, Preference
from gym_data.tokenizer import Mask, Tokenizer, Tokens

APART = "the chat template shows earlier answers differently; use `train_on: last`"
SAME = "both answers are the same within the cutoff"
UNLIKE = "its answers have different media, and both sides of a pair show the same"


def encode_preferences(reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield pairs, each side cut to length; those in which a side has nothing left to learn are counted and left out."""
    media = tokenizer.media
    for batch in rendered(reader, tokenizer, (_both(reader, batch) for batch in batches(reader.records(), BATCH))):
        kept: list[tuple[Record, dict[str, Any]]] = []
        texts: list[Rendered] = []
        for record, _, found in batch:
            if any(len(each.sequences) > 1 for each in found):
                reader.refused(record, ValueError(APART))
                continue
            both, about = [each.sequences[0] for each in found], dict[str, Any]()
            if media is not None:
                try:
                    own, both = _shown(record, both, media, reader)
                except ValueError as error:
                    reader.bad(record.source, record.number, error, ITS_MEDIA)
                    continue
                about["media"] = own
            kept.append((record, about))
            texts += both
        encoded = tokenizer.encode_rendered(texts)
        for (record, about), chosen, rejected in zip(kept, encoded[::2], encoded[1::2], strict=True):
            tally = reader.tallies[record.source]
            tally.unclosed += not (tokenizer.closes(*chosen) and tokenizer.closes(*rejected))
            if max(len(chosen[0]), len(rejected[0])) > reader.config.cutoff:
                if reader.config.overlong == "drop":
                    tally.dropped[TOO_LONG] += 1
                    continue
                if media and not all(whole(side[0], reader.config.cutoff, media.tokens) for side in (chosen, rejected)):
                    tally.dropped[BEYOND] += 1
                    continue
                tally.truncated += 1
            yield from paired(record, _first(chosen, reader), _first(rejected, reader), reader, about)


def _shown(
    record: Record, texts: Sequence[Rendered], media: MediaReader, reader: Reader
) -> tuple[list[Medium], list[Rendered]]:
    """Return the media of both sides, and their texts with these. Raises ValueError where they are not the same."""
    assert isinstance(record.row, Preference)
    folder, sides = reader.opened[record.source].folder, (record.row.chosen, record.row.rejected)
    each = [shown(side.media, [text], media, folder)[0] for side, text in zip(sides, texts, strict=True)]
    (chosen, _), (rejected, _) = each
    if chosen != rejected:
        raise ValueError(UNLIKE)
    return chosen, [text for _, text in each]


def _both(reader: Reader, batch: Sequence[Record]) -> Iterator[tuple[Record, None, list[RenderRequest]]]:
    """Yield pairs and what is wanted of their sides; those of which a side has no answer to learn are counted."""
    for record in batch:
        pair = record.row
        assert isinstance(pair, Preference)
        try:
            yield record, None, [_side(reader, each, pair.shared) for each in (pair.chosen, pair.rejected)]
        except ValueError as error:
            reader.refused(record, error)


def _side(reader: Reader, conversation: Conversation, start: int) -> RenderRequest:
    """Return a conversation of which the answers from message `start` on are to be trained on, or the last of them."""
    wanted = [index for index in conversation.answers if index >= start and index not in conversation.muted]
    if reader.config.train_on == "last":
        wanted = [index for index in wanted if index == conversation.answers[-1]]
    if not wanted:
        raise UntrainableRowError("no answer is to be learnt")
    messages = with_system(conversation.messages, reader.config.system)
    added = len(messages) - len(conversation.messages)
    return RenderRequest(messages, conversation.tools, [index + added for index in wanted], values=conversation.values)


def _first(side: tuple[Tokens, Mask], reader: Reader) -> tuple[Tokens, Mask]:
    return side[0][: reader.config.cutoff], side[1][: reader.config.cutoff]


def paired(
    record: Record,
    chosen: tuple[Tokens, Mask],
    rejected: tuple[Tokens, Mask],
    reader: Reader,
    more: Mapping[str, Any] | None = None,
) -> Iterator[Piece]:
    """Yield the pair as one sequence, in which the beginning of both sides stands once; `more` is said of it besides."""
    assert isinstance(record.row, Preference)
    dropped = reader.tallies[record.source].dropped
    if not (chosen[1].any() and rejected[1].any()):
        dropped[NOTHING] += 1
        return
    if np.array_equal(chosen[0], rejected[0]):
        dropped[SAME] += 1
        return
    shared = _shared(chosen, rejected)
    yield Piece(
        np.concatenate([chosen[0], rejected[0][shared:]]),
        np.concatenate([chosen[1], rejected[1][shared:]]),
        record.source,
        record.number,
        0,
        record.times,
        record.key,
        {"shared": shared, "chosen": len(chosen[0]) - shared, "margin": record.row.margin, **(more or {})},
        record.row.remarks,
    )


def _shared(chosen: tuple[Tokens, Mask], rejected: tuple[Tokens, Mask]) -> int:
    """Return how many tokens both sides begin with, before the first one of either that is trained on."""
    most = min(int(np.argmax(chosen[1])), int(np.argmax(rejected[1])))
    different = np.flatnonzero(chosen[0][:most] != rejected[0][:most])
    return int(different[0]) if len(different) else most

"""How rows of each shape become sequences, and what is known of these once they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gym_data.encodings.conversation_encoding import Piece, encode_conversations, encode_feedback, encode_prompts
from gym_data.encodings.document_encoding import encode_texts
from gym_data.encodings.pair_encoding import encode_preferences
from gym_data.encodings.stepwise_encoding import encode_steps
from gym_data.progress import counted
from gym_data.row_reader import Reader
from gym_data.sequences import Sequences
from gym_data.shapes import brought
from gym_data.tokenizer import Tokenizer

ENCODERS: dict[str, Callable[[Reader, Tokenizer], Iterator[Piece]]] = {
    "conversation": encode_conversations,
    "text": encode_texts,
    "prompt": encode_prompts,
    "preference": encode_preferences,
    "feedback": encode_feedback,
    "stepwise": encode_steps,
}


@dataclass
class Encoded:
    """What is known of the sequences written so far."""

    orders: list[list[tuple[int, int]]]  #: sequences of each source in order, and how often each is drawn
    groups: list[int] = field(default_factory=list)  #: by sequence; equal for equal contents
    rows: list[tuple[int, int]] = field(default_factory=list)  #: by sequence; the source and the row it comes from
    lengths: list[int] = field(default_factory=list)
    learnt: list[int] = field(default_factory=list)
    duplicates: int = 0  #: rows whose content came before


def encoded(reader: Reader, tokenizer: Tokenizer, into: Sequences, progress: bool = True) -> Encoded:
    """Write the sequences of all rows, and return what is known of them; with a bar where `progress` is."""
    read = Encoded([[] for _ in reader.opened])
    known: dict[bytes, int] = {}
    template = reader.config.template
    own = brought(reader.shape)
    encoder = own.encode if own else {**ENCODERS, **(template.encoders() if template else {})}[reader.shape]
    pieces = encoder(reader, tokenizer)
    for number, piece in enumerate(counted(pieces, "tokenising") if progress else pieces):
        read.duplicates += piece.part == 0 and piece.key in known
        if piece.part == 0:
            reader.tallies[piece.source].noticed.update(piece.remarks)
        read.groups.append(known.setdefault(piece.key, len(known)))
        read.rows.append((piece.source, piece.number))
        read.lengths.append(len(piece.tokens))
        read.learnt.append(int(piece.trained.sum()))
        read.orders[piece.source].append((number, piece.times))
        into.add(piece.tokens, piece.trained, (piece.source, piece.number, piece.part), piece.about, piece.segments)
    return read

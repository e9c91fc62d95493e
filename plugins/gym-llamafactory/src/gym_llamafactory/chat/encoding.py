"""Rows of each shape as sequences, as LLaMA-Factory makes them: ids, mask, and `cutoff` shared between prompt and answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import Any

import numpy as np

from gym_data.chat.loss_masks import Rendered
from gym_data.chat.render import DAY
from gym_data.chat.template_omissions import lost
from gym_data.encodings.conversation_encoding import BATCH, NOTHING, Piece, batches
from gym_data.encodings.pair_encoding import UNLIKE, paired
from gym_data.media import Medium, with_paths
from gym_data.row_reader import Reader, Record
from gym_data.rows import Conversation, Feedback, Preference, Prompt, Structured
from gym_data.tokenizer import Mask, Tokenizer, Tokens
from gym_llamafactory.chat import LlamaFactory
from gym_llamafactory.chat.media import beyond, shown, told_of
from gym_llamafactory.chat.turns import Element, Pair, Turns

NO_MESSAGES = "it holds texts as a model reads them, and no messages to write"
Encoder = Callable[[LlamaFactory, Reader, Tokenizer], Iterator[Piece]]
_Learnt = tuple[Record, Any, list[list[Pair]]]


def shared(prompt: int, answer: int, most: int) -> tuple[int, int]:
    """Return how many tokens of a prompt and of its answer stay within `most`.

    Where one of them needs less than half, it stays whole and the other has the rest; else both lose the same share.
    """
    if 2 * answer < most:
        room = most
    elif 2 * prompt < most:
        room = most - prompt
    else:
        room = int(most * (answer / (prompt + answer)))
    kept = min(room, answer)
    return min(max(most - kept, 0), prompt), kept


def learn(
    pairs: Sequence[Pair], unlearnt: Sequence[bool], train_on: str, end: Sequence[int], most: int
) -> tuple[Tokens, Mask]:
    """Return ids and mask of a conversation.

    `train_on: last` gives the last turns room first, all others from the first turn on. `end` is the token that closes turns
    where it stands once, behind the last answer: that earlier ones end too is not learnt, as it stands nowhere.
    """
    last = train_on == "last"
    length = len(end)
    parts: list[tuple[list[int], list[bool]]] = []
    for number, (prompt, answer) in enumerate(reversed(pairs) if last else pairs):
        if length >= most:
            break
        before, after = shared(len(prompt), len(answer), most - length)
        length += before + after
        tokens = prompt[:before]
        read = [train_on == "all"] * before
        index = len(pairs) - 1 - number if last else number
        learnt = not unlearnt[index] and not (last and number)
        parts.append((tokens + answer[:after], read + [learnt] * after))
    parts = parts[::-1] if last else parts
    ids = [token for tokens, _ in parts for token in tokens] + list(end)
    mask = [each for _, several in parts for each in several] + [True] * len(end)
    return _arrays(ids, mask)


def _arrays(ids: Sequence[int], mask: Sequence[bool]) -> tuple[Tokens, Mask]:
    trained = np.asarray(mask, dtype=bool)
    trained[:1] = False  # nothing comes before it
    return np.asarray(ids, dtype=np.int32), trained


def encode_conversations(config: LlamaFactory, reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield conversations, of which every answer is learnt, or the last."""
    turns = _turns(config, reader, tokenizer)
    last = reader.config.train_on == "last"
    history = not last or turns.config.preserve_thinking

    def asked(record: Record) -> tuple[list[Medium], list[list[list[Element]]]]:
        row = record.row
        if not isinstance(row, Conversation):
            raise ValueError(NO_MESSAGES)
        media, elements = shown(reader, record, turns, row, turns.elements(row, history, alone=last and not history))
        return media, [elements]

    end = turns.eos if turns.format.efficient_eos else []
    for record, media, (pairs,) in _written(reader, turns, asked):
        conversation = record.row
        assert isinstance(conversation, Conversation)
        muted = [index in conversation.muted for index in conversation.answers]
        most, whole = reader.config.cutoff, sum(len(prompt) + len(answer) for prompt, answer in pairs) + len(end)
        tokens, trained = learn(pairs, muted, reader.config.train_on, end, most)
        if beyond(reader, record, turns, tokens, [token for prompt, _ in pairs for token in prompt]):
            continue
        yield from _kept(reader, record, tokens, trained, whole > len(tokens), about=told_of(turns, media) or None)


def encode_preferences(config: LlamaFactory, reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield pairs, of which the last answers are learnt; both are cut to the same length."""
    turns = _turns(config, reader, tokenizer)

    def asked(record: Record) -> tuple[list[Medium], list[list[list[Element]]]]:
        row = record.row
        assert isinstance(row, Preference)
        chosen, rejected = (_answered(reader, record, turns, side) for side in (row.chosen, row.rejected))
        if chosen[0] != rejected[0]:
            raise ValueError(UNLIKE)
        return chosen[0], [chosen[1], rejected[1]]

    for record, media, sides in _written(reader, turns, asked):
        both = [_one_turn(turns, pairs) for pairs in sides]
        asked_most, said_most = (max(len(side[part]) for side in both) for part in (0, 1))
        before, after = shared(asked_most, said_most, reader.config.cutoff)
        reader.tallies[record.source].truncated += before < asked_most or after < said_most
        cut = [(prompt[:before], answer[:after]) for prompt, answer in both]
        chosen, rejected = (_arrays(prompt + answer, _answer_alone(prompt, answer)) for prompt, answer in cut)
        if any(beyond(reader, record, turns, kept[0], side[0]) for kept, side in zip(cut, both, strict=True)):
            continue
        yield from paired(record, chosen, rejected, reader, told_of(turns, media))


def encode_feedback(config: LlamaFactory, reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield labelled conversations, of which the last answer is learnt; a pair is a good answer and a bad one."""
    turns = _turns(config, reader, tokenizer)

    def asked(record: Record) -> tuple[list[dict[str, Any]], list[list[list[Element]]]]:
        row = record.row
        if not isinstance(row, Preference | Feedback):
            raise ValueError(NO_MESSAGES)
        judged = (
            {True: row.chosen, False: row.rejected}
            if isinstance(row, Preference)
            else {row.desirable: row.conversation}
        )
        found = [(good, *_answered(reader, record, turns, side)) for good, side in judged.items()]
        return [{"desirable": good, **told_of(turns, media)} for good, media, _ in found], [each for *_, each in found]

    for record, abouts, sides in _written(reader, turns, asked):
        for part, (about, pairs) in enumerate(zip(abouts, sides, strict=True)):
            prompt, answer = _one_turn(turns, pairs)
            before, after = shared(len(prompt), len(answer), reader.config.cutoff)
            kept = prompt[:before], answer[:after]
            tokens, trained = _arrays(kept[0] + kept[1], _answer_alone(*kept))
            cut = len(tokens) < len(prompt) + len(answer)
            if not beyond(reader, record, turns, kept[0], prompt):
                yield from _kept(reader, record, tokens, trained, cut, part, about)


def encode_prompts(config: LlamaFactory, reader: Reader, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield prompts as they stand before an answer, with their rows; room is left for the answer that a row holds."""
    turns = _turns(config, reader, tokenizer)

    def asked(record: Record) -> tuple[list[Medium], list[list[list[Element]]]]:
        row = record.row
        assert isinstance(row, Prompt)
        answer = {"role": "assistant", "content": str(row.row.get("answer", ""))}
        told = row.conversation
        whole = Conversation((*told.messages, answer), told.tools or reader.tools, media=told.media)
        media, elements = _answered(reader, record, turns, whole)
        return media, [elements]

    for record, media, (pairs,) in _written(reader, turns, asked):
        prompt, answer = _one_turn(turns, pairs)
        before, _ = shared(len(prompt), len(answer), reader.config.cutoff)
        reader.tallies[record.source].truncated += before < len(prompt)
        assert isinstance(record.row, Prompt)
        told = record.row.conversation
        if beyond(reader, record, turns, prompt[:before], prompt):
            continue
        row = with_paths(record.row.row, told.media, media) if media else record.row.row
        about = {
            "messages": list(told.messages),
            "row": row,
            "tools": told.tools or reader.tools,
            **told_of(turns, media),
        }
        tokens, none = _arrays(prompt[:before], [False] * before)
        yield Piece(tokens, none, record.source, record.number, 0, record.times, record.key, about)


def _answer_alone(prompt: Sequence[int], answer: Sequence[int]) -> list[bool]:
    return [False] * len(prompt) + [True] * len(answer)


def _answered(
    reader: Reader, record: Record, turns: Turns, conversation: Conversation
) -> tuple[list[Medium], list[list[Element]]]:
    """Return the media and the elements of a conversation whose last answer is learnt."""
    elements = turns.elements(conversation, turns.config.preserve_thinking, alone=True)
    return shown(reader, record, turns, conversation, elements)


def _one_turn(turns: Turns, pairs: Sequence[Pair]) -> Pair:
    """Return all that comes before the last answer, and that answer, closed."""
    before = [token for prompt, answer in pairs[:-1] for token in (*prompt, *answer)]
    prompt, answer = pairs[-1]
    return before + prompt, answer + (turns.eos if turns.format.efficient_eos else [])


def _turns(config: LlamaFactory, reader: Reader, tokenizer: Tokenizer) -> Turns:
    day = tokenizer.template_spec.values.get(DAY)
    return Turns(config, tokenizer, reader.config.system, date.fromisoformat(day) if day else date.today())


def _written(
    reader: Reader, turns: Turns, asked: Callable[[Record], tuple[Any, list[list[list[Element]]]]]
) -> Iterator[_Learnt]:
    """Yield records with what `asked` says of them and their turns in tokens; those that cannot be written are bad rows."""
    for batch in batches(reader.records(), BATCH):
        kept: list[tuple[Record, Any, list[list[list[Element]]]]] = []
        for record in batch:
            try:
                more, several = asked(record)
            except ValueError as error:
                reader.refused(record, error)
                continue
            kept.append((record, more, several))
            reader.tallies[record.source].lost.update(_unread(record.row, reader.config.train_on, turns))
            texts = (each for messages in several for message in messages for each in message if isinstance(each, str))
            reader.tallies[record.source].spelt += any(turns.tokenizer.quotes(Rendered(text, ())) for text in texts)
        encoded = iter(turns.pairs(each for _, _, several in kept for each in several))
        for record, more, several in kept:
            yield record, more, [next(encoded) for _ in several]


def _unread(row: Structured, train_on: str, turns: Turns) -> set[str]:
    """Return what no format writes of messages: thoughts in keys of their own, text beside a call, other keys."""
    if isinstance(row, Preference):
        sides = [(row.chosen, row.chosen.answers[-1:]), (row.rejected, row.rejected.answers[-1:])]
    elif isinstance(row, Feedback):
        sides = [(row.conversation, row.conversation.answers[-1:])]
    elif isinstance(row, Prompt):
        sides = [(row.conversation, [])]
    else:
        assert isinstance(row, Conversation)
        sides = [(row, [index for index in row.answers[-1 if train_on == "last" else 0 :] if index not in row.muted])]
    found: set[str] = set()
    for conversation, wanted in sides:
        rest = []
        found.update(f"`{name}` of `chat_template_kwargs`" for name in conversation.values)
        for message in conversation.messages:
            beside = bool(message.get("tool_calls")) and not turns.thinks(message["content"])
            rest.append({**message, "content": message["content"] if beside else "", "tool_calls": ()})
        found.update(lost("", "", rest, wanted))
    return found


def _kept(
    reader: Reader,
    record: Record,
    tokens: Tokens,
    trained: Mask,
    cut: bool,
    part: int = 0,
    about: dict[str, Any] | None = None,
) -> Iterator[Piece]:
    """Yield a sequence, unless nothing of it is learnt, or it was to be left out where it is too long."""
    tally = reader.tallies[record.source]
    tally.truncated += cut
    if trained.any():
        origin = record.source, record.number, part, record.times, record.key
        segments = ((len(tokens), None),) if reader.branches else ()
        yield Piece(tokens, trained, *origin, about, record.row.remarks, segments)
    else:
        tally.dropped[NOTHING] += 1


ENCODERS: dict[str, Encoder] = {
    "conversation": encode_conversations,
    "preference": encode_preferences,
    "feedback": encode_feedback,
    "prompt": encode_prompts,
}

"""Laws of row formats, asked of the example that each one declares: it is read, and learnt from as it should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from gym_data import DatasetConfig, File, Format
from gym_data.prepare import Example
from gym_data.rows import Conversation, Text
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_testkit.named import names_its_maker
from gym_testkit.tiny import SPECIAL

laws = laws_of("formats", "format")


def _example(brought: Brought) -> Mapping[str, Any]:
    return cast(type[Format], brought.cls).example


def _read(brought: Brought) -> Any:
    return brought.sample().build().convert(_example(brought))


def _is_conversation(brought: Brought) -> bool:
    return bool(_example(brought)) and isinstance(_read(brought), Conversation)


def _is_learnt_from(brought: Brought) -> bool:
    return bool(_example(brought)) and isinstance(_read(brought), Conversation | Text)


@laws("declares an example, and reads it")
def reads(brought: Brought, bench: Bench) -> None:
    """The class shows a row, and the row means the same each time it is read."""
    assert _example(brought), f"{brought.cls.__name__}.example is empty: show a row that the default options read"
    assert _read(brought) == _read(brought)


@laws("a row that is none of its own is refused with a reason")
def refuses(brought: Brought, bench: Bench) -> None:
    """An unrelated row raises ValueError, so that the data plugin can name the row and go on."""
    try:
        brought.sample().build().convert({"colour": 3})
    except ValueError as error:
        assert str(error).strip(), "the error says nothing"
    else:
        raise AssertionError("a row without any of its columns was read")


@laws("only what should be trained is trained", _is_conversation)
def trained(brought: Brought, bench: Bench) -> None:
    """Every answer is learnt with what ends it, and nothing that others said."""
    example = _prepared(brought, bench, _example(brought))
    learnt = bytes(int(token) for token in example.tokens[example.trained] if token < 256).decode()
    conversation = _read(brought)
    answers = [conversation.messages[number]["content"] for number in conversation.answers]
    assert learnt == "".join(answers), f"learnt {learnt!r}, answers {answers}"


@laws("special-token text stays text", _is_learnt_from)
def text_stays_text(brought: Brought, bench: Bench) -> None:
    """`<|im_end|>` written by a user is nine characters, and ends nothing."""
    plain = _prepared(brought, bench, _example(brought))
    attack = _prepared(brought, bench, _attacked(_example(brought), str(_read(brought))))
    assert sum(attack.tokens >= 256) == sum(plain.tokens >= 256), "a special token came out of a row's text"
    assert len(attack.tokens) > len(plain.tokens)


@laws("tokens of rows it read name it: package, version, code and every option")
def named(brought: Brought, bench: Bench) -> None:
    """So they are made again when any of that changes, and never taken for another's of the same class name."""
    names_its_maker(brought)


def _prepared(brought: Brought, bench: Bench, row: Mapping[str, Any]) -> Example:
    """Return the one example that a row becomes, through everything that a run does to it."""
    shape = "text" if isinstance(_read(brought), Text) else "conversation"
    source = File(path=str(bench.file([row])))
    data = DatasetConfig(sources=[source], format=cast(Format, brought.sample()), split="documents")
    return cast(Example, data.build(tokenizer=bench.model(), rows=shape, seed=0).train[0])


def _attacked(value: Any, read: str) -> Any:
    """Return the row with special tokens written into every text of it that somebody said."""
    if isinstance(value, Mapping):
        return {key: _attacked(item, read) for key, item in value.items()}
    if isinstance(value, list):
        return [_attacked(item, read) for item in value]
    said = isinstance(value, str) and " " in value and value in read
    return f"{value} {''.join(SPECIAL)}" if said else value

"""Keeping special-token text in contents text: `<|im_end|>` typed by a user must not end the turn.

Before rendering, every occurrence in a message is replaced by a quote (noncharacters of Unicode around its number);
after rendering, what still reads as a special token was written by the template. Where both occur in one text, the
template's own are given other names, under which a copy of the tokenizer knows them, and the quotes become what was
typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gym_data.chat.render import GENERATION_END, GENERATION_START
from gym_data.rows import Message

QUOTE = "\ufdd0{}\ufdd1"
NAME = "\ufdd2{}\ufdd3"
_NO_TEXT = re.compile(f"[\ufdd0-\ufdd3{GENERATION_START}{GENERATION_END}\ud800-\udfff]")
_QUOTED = re.compile("\ufdd0(\\d+)\ufdd1")


class SpecialTokenQuoter:
    """Quotes and unquotes the special tokens of one tokenizer."""

    def __init__(self, special: Sequence[str], control: Sequence[str], closing: Sequence[str] | None = None) -> None:
        """Take the special tokens, and further tokens that only the template or the assistant may write.

        `closing` are the special tokens that can end a turn, where they are not the same.
        """
        self.tokens = [*special, *control]
        self._number = {token: number for number, token in enumerate(self.tokens)}
        self._special = re.compile(_either(special))
        self._any = re.compile(_either(self.tokens))
        self._closing = self._special if closing is None else re.compile(_either(closing))

    def quote_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages in which no special token is left. Raises ValueError for text that cannot be encoded."""
        return [
            self._quote(message, self._special if message["role"] == "assistant" else self._any) for message in messages
        ]

    def quote(self, value: Any) -> Any:
        """Return tools or other data in which no special token is left."""
        return self._quote(value, self._any)

    def quoted(self, text: str) -> bool:
        """Whether a rendered text holds quotes."""
        return _QUOTED.search(text) is not None

    def name(self, text: str) -> str:
        """Return a rendered text for the renamed tokenizer: the template's own tokens renamed, the quotes undone."""
        named = self._any.sub(lambda match: NAME.format(self._number[match.group()]), text)
        return self.unquote(named)

    def unquote(self, text: str) -> str:
        """Return a rendered text with the quotes undone."""
        return _QUOTED.sub(lambda match: self.tokens[int(match.group(1))], text)

    def special_spans(self, text: str) -> list[tuple[int, int]]:
        """Return where the template wrote special tokens: (start, end) in characters."""
        return [match.span() for match in self._closing.finditer(text)]

    def ends_special(self, text: str) -> bool:
        """Whether a special token stands at the end of a text, blanks aside."""
        spans = self.special_spans(text)
        return bool(spans) and not text[spans[-1][1] :].strip()

    def _quote(self, value: Any, pattern: re.Pattern[str]) -> Any:
        if isinstance(value, str):
            odd = _NO_TEXT.search(value)
            if odd:
                kind = "a lone surrogate" if "\ud800" <= odd.group() <= "\udfff" else "a noncharacter of Unicode"
                raise ValueError(f"it holds {kind}, U+{ord(odd.group()):04X}, which is no text")
            return pattern.sub(lambda match: QUOTE.format(self._number[match.group()]), value)
        if isinstance(value, Mapping):
            return {self._quote(key, pattern): self._quote(item, pattern) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._quote(item, pattern) for item in value]
        return value


def as_text(value: Any) -> Any:
    """Return a text, or plain data, with U+FFFD in place of characters that are no text to a tokenizer."""
    if isinstance(value, str):
        return _NO_TEXT.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {as_text(key): as_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_text(item) for item in value]
    return value


def _either(tokens: Iterable[str]) -> str:
    """Return a pattern that matches any of these, the longest first."""
    escaped = [re.escape(token) for token in sorted(tokens, key=len, reverse=True)]
    return "|".join(escaped) or "(?!)"

"""Texts that end what is generated, as a token does that ends a turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: Characters more than a text needs: what a decoder makes of the first token depends on what stands before it.
CONTEXT = 8


class StopStrings:
    """Says after which token one of some texts stands in what was generated.

    What is decoded for a token has a length that the texts bound, not what was generated before it.
    """

    def __init__(self, texts: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        """Take the texts, none of them empty; `decode` returns the text of some tokens."""
        self.texts, self._decode = tuple(texts), decode
        self._needed = max(map(len, self.texts), default=0) + CONTEXT
        self._tokens = max((len(text.encode()) for text in self.texts), default=0) + CONTEXT  # none is less than a byte

    def ended_by(self, tokens: Sequence[int]) -> str | None:
        """Return the text that the last token made whole; None where it made none. No token before it did."""
        if not self.texts:
            return None
        first = max(0, len(tokens) - self._tokens)
        while first and len(self._decode(tokens[first:-1])) < self._needed:  # some tokens are no text at all
            first = max(0, first - self._tokens)
        return self.within(tokens[first:])

    def within(self, tokens: Sequence[int]) -> str | None:
        """Return the first of the texts that stands in the text of the tokens, wherever; None where none does."""
        text = self._decode(tokens) if self.texts else ""
        return next((each for each in self.texts if each in text), None)

    def end(self, tokens: Sequence[int]) -> tuple[int, str | None]:
        """Return how many of the tokens belong to an answer that ends where one of the texts first stands, and that text."""
        if self.within(tokens) is not None:
            for count in range(1, len(tokens) + 1):
                if (found := self.ended_by(tokens[:count])) is not None:
                    return count, found
        return len(tokens), None

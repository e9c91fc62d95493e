"""Draft tokens for speculative decoding: what followed the last words of a text at an earlier place in it (prompt lookup
decoding).

Answers that quote their prompt, edit code or repeat themselves have many such tokens in a row. A pass over a few tokens reads
each weight once, as a pass over one token does, so correct drafts cost almost nothing. Speculative decoding is arXiv:2211.17192;
here a draft token is accepted only where sampling chooses that same token, so drafts change the time and no result.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

WORDS = 3  #: tokens that must have stood before, in this order
MOST = 12  #: tokens guessed at once
ROOM = 64  #: tokens of a pass with guesses
REST = 32  #: most times that no guess is made, for those that were wrong


def most_guesses(rows: int, most: int) -> int:
    """Return the draft tokens of each of `rows` rows, at most `most`: with many rows each token adds to the time of a pass."""
    return min(most, ROOM // rows - 1)


class Drafts:
    """The draft tokens of one row, and the logits that follow each."""

    def __init__(self, most: int) -> None:
        """Begin with an empty text and at most `most` draft tokens at once."""
        self.tokens: list[int] = []  #: guessed and in the cache, and not chosen yet
        self.logits: list[Tensor] = []  #: `[1, vocabulary]` that follow each of them
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # by words: the place after them
        self._most = self._limit = most
        self._guessed = 0  # at once, the last time
        self._misses = self._rest = 0  # guesses in a row of which nothing was right, and those left out for it

    def follows(self, token: int) -> Tensor | None:
        """Return the logits that follow a chosen token if it was the next draft token, else None."""
        if not self.tokens or self.tokens[0] != token:
            return None
        self.tokens.pop(0)
        self._most = min(2 * self._most, self._limit)
        return self.logits.pop(0)

    def forget(self) -> int:
        """Drop the draft tokens that are left; return how many there were."""
        count = len(self.tokens)
        self.tokens, self.logits = [], []
        if count and count == self._guessed:
            self._most = max(count // 2, 1)
            self._misses += 1
            self._rest = min(2**self._misses, REST)
        elif self._guessed:
            self._misses = 0
        self._guessed = 0
        return count

    def rests(self) -> bool:
        """Whether to make no draft in this step: drafts of which no token was accepted are followed by ever longer pauses."""
        self._rest -= self._rest > 0
        return self._rest > 0

    def guess(self, text: Sequence[int], most: int) -> list[int]:
        """Return at most `most` tokens that may follow `text`, which begins with the text of the call before."""
        for token in text[len(self._text) :]:
            if len(self._text) >= WORDS:
                self._after[tuple(self._text[-WORDS:])] = len(self._text)
            self._text.append(token)
        place = self._after.get(tuple(self._text[-WORDS:]))
        found = [] if place is None else self._text[place : place + min(most, self._most)]
        self._guessed = len(found)
        return found

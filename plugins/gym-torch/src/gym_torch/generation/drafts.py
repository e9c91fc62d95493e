"""Guesses at what a text goes on with: what followed its last words where they stood before (prompt lookup decoding).

Answers that quote their prompt, edit code or repeat themselves are guessed right for many tokens at a time. A pass over a few
tokens reads each weight once, as a pass over one does, so right guesses cost next to nothing. (Speculative decoding is
arXiv:2211.17192; here a guess is right where the very token is chosen that was guessed, so it changes nothing but the time.)
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

WORDS = 3  #: tokens that must have stood before, in this order
MOST = 12  #: tokens guessed at once
ROOM = 64  #: tokens of a pass with guesses
REST = 32  #: most times that no guess is made, for those that were wrong


def most_guesses(rows: int, most: int) -> int:
    """Return how many tokens to guess for each of some rows in flight: with many rows a pass costs what its tokens cost."""
    return min(most, ROOM // rows - 1)


class Drafts:
    """What is guessed for one row, and the logits that follow each guess."""

    def __init__(self, most: int) -> None:
        """Begin with an empty text; `most` tokens are guessed at once."""
        self.tokens: list[int] = []  #: guessed and in the cache, and not chosen yet
        self.logits: list[Tensor] = []  #: `[1, vocabulary]` that follow each of them
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # by words: the place after them
        self._most = self._limit = most
        self._guessed = 0  # at once, the last time
        self._misses = self._rest = 0  # guesses in a row of which nothing was right, and those left out for it

    def follows(self, token: int) -> Tensor | None:
        """Return the logits that follow a chosen token where it was guessed; None where it was not, or nothing is left."""
        if not self.tokens or self.tokens[0] != token:
            return None
        self.tokens.pop(0)
        self._most = min(2 * self._most, self._limit)
        return self.logits.pop(0)

    def forget(self) -> int:
        """Give the guesses up; return how many these are."""
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
        """Whether to guess nothing this time, after guesses of which nothing was right: the more of them, the longer."""
        self._rest -= self._rest > 0
        return self._rest > 0

    def guess(self, text: Sequence[int], most: int) -> list[int]:
        """Return `most` tokens at most that may follow a text, which goes on from what was given before."""
        for token in text[len(self._text) :]:
            if len(self._text) >= WORDS:
                self._after[tuple(self._text[-WORDS:])] = len(self._text)
            self._text.append(token)
        place = self._after.get(tuple(self._text[-WORDS:]))
        found = [] if place is None else self._text[place : place + min(most, self._most)]
        self._guessed = len(found)
        return found

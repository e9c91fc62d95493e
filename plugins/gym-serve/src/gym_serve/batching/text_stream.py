"""The text of tokens as they come: never half a character, and nothing of a stop string or behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNKNOWN = "\ufffd"  #: what bytes decode to that are no character yet
BYTES = 4  #: of a character, at most: so many tokens back it is known what the bytes are
CONTEXT = 8  #: tokens of what a text goes on with: a decoder may drop the space before the first word that it is given
WINDOW = 16  #: tokens without a whole character, after which those are shown that no later token can change


class TextStream:
    """Turns tokens into text piece by piece; together the pieces are the text of all tokens, up to the stop string.

    What is decoded for a token has a bounded length, whatever the tokens are.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: Sequence[str] = (),
        before: Sequence[int] = (),
        least: int = 0,
        shows_stop: bool = False,
    ) -> None:
        """Begin without tokens; `decode` returns the text of some, and `before` is what the text goes on with.

        A stop string that is whole within the text of the `least` first tokens does not end it. With `shows_stop` the one that
        ends it is shown.
        """
        self._decode = decode
        self._stop = [text for text in stop if text]
        self._tokens = [] if decode(before[-CONTEXT:]).endswith(UNKNOWN) else list(before[-CONTEXT:])
        self._start, self._read = 0, len(self._tokens)  # tokens from `start` on give those from `read` on their context
        self._held = ""  # decoded, and may be the beginning of a stop string
        self._least, self._shows_stop = least, shows_stop
        self._free = 0  # characters of those that are held, in which no stop string may end
        self.length = 0  #: characters that were decoded
        self.stop: str | None = None  #: the stop string that ended it

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended it."""
        return self.stop is not None

    def push(self, token: int) -> str:
        """Return what can be shown now that a token was added."""
        self._tokens.append(token)
        self._least -= 1
        return self._show(self._new(whole=False), last=False)

    def end(self) -> str:
        """Return the rest."""
        return self._show(self._new(whole=True), last=True)

    def _new(self, whole: bool) -> str:
        """Return the text that was added since it was last asked; with `whole` half characters too."""
        before = self._decode(self._tokens[self._start : self._read])
        now = self._decode(self._tokens[self._start :])
        if whole or (len(now) > len(before) and not now.endswith(UNKNOWN)):
            self._start, self._read = self._read, len(self._tokens)
            return now[len(before) :]
        waiting = len(self._tokens) - self._read
        return self._settled(before, now) if waiting >= WINDOW and waiting % BYTES == 0 else ""

    def _settled(self, before: str, now: str) -> str:
        """Return what no later token changes of a text that ends in half a character: up to a token that begins a new one."""
        last = len(self._tokens) - BYTES
        for place in range(last, last - BYTES, -1):
            settled = self._decode(self._tokens[self._start : place])
            if settled + self._decode(self._tokens[place:]) == now:
                break
        else:
            if last < self._read + 4 * WINDOW:  # no such token: a decoder of its own kind
                return ""
        self._start = self._read = place
        return settled[len(before) :]

    def _show(self, new: str, last: bool) -> str:
        if self.stopped:
            return ""
        self.length += len(new)
        text = self._held + new
        free = len(text) if self._least >= 0 else self._free
        starts = ((text.find(stop, max(0, free + 1 - len(stop))), stop) for stop in self._stop)
        found = [(at, stop) for at, stop in starts if at >= 0]
        if found:
            (at, self.stop), self._held = min(found), ""
            return text[: at + len(self.stop) * self._shows_stop]
        held = 0 if last else max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - held :]
        self._free = max(0, free + held - len(text))
        return text[: len(text) - held]


def text_of(decode: Callable[[Sequence[int]], str], token: int, before: Sequence[int]) -> str:
    """Return what a token adds to a text."""
    return decode([*before, token])[len(decode(before)) :]


def _overlap(text: str, stop: str) -> int:
    """Return how many last characters of a text may be the beginning of a stop string."""
    most = min(len(stop) - 1, len(text))
    return next((count for count in range(most, 0, -1) if text.endswith(stop[:count])), 0)

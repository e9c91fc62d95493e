"""The text of tokens as they come: never half a character, and nothing of a stop string or behind it."""

from __future__ import annotations

from collections.abc import Sequence

from gym_data.tokenizer import Tokenizer

UNKNOWN = "\ufffd"  #: what bytes decode to that are no character yet


class TextStream:
    """Turns tokens into text piece by piece; together the pieces are the text of all tokens, up to the stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        """Begin without tokens."""
        self._tokenizer = tokenizer
        self._stop = [text for text in stop if text]
        self._tokens: list[int] = []
        self._start = self._read = 0  # tokens from `start` on give the text of those from `read` on its context
        self._held = ""  # decoded, and may be the beginning of a stop string
        self.stopped = False

    def push(self, token: int) -> str:
        """Return what can be shown now that a token was added."""
        self._tokens.append(token)
        return self._show(self._new(whole=False), last=False)

    def end(self) -> str:
        """Return the rest."""
        return self._show(self._new(whole=True), last=True)

    def _new(self, whole: bool) -> str:
        """Return the text that was added since it was last asked; with `whole` half characters too."""
        before = self._tokenizer.decode(self._tokens[self._start : self._read])
        now = self._tokenizer.decode(self._tokens[self._start :])
        if len(now) <= len(before) or (now.endswith(UNKNOWN) and not whole):
            return ""
        self._start, self._read = self._read, len(self._tokens)
        return now[len(before) :]

    def _show(self, new: str, last: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        found = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        held = 0 if last else max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Return how many last characters of a text may be the beginning of a stop string."""
    most = min(len(stop) - 1, len(text))
    return next((count for count in range(most, 0, -1) if text.endswith(stop[:count])), 0)

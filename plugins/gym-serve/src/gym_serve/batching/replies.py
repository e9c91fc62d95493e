"""A reply under way: what the thread that decodes tells of it, and what its reader gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property

from gym_serve.batching.batch_model import Words
from gym_serve.batching.grammar import Mask
from gym_serve.batching.text_stream import UNKNOWN, TextStream, text_of
from gym_serve.contract import Alternative, FinishReason, Piece, Sampling, TokenLogprob, Usage
from gym_serve.errors import Gone, RequestError
from gym_torch.generation.row import Row
from gym_torch.generation.sampling import Scores
from gym_torch.generation.scheduler import ClosedError

#: bytes of the characters with which byte-level vocabularies are written
SIGNS = {
    chr(byte if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174 else 256 + number): byte
    for number, byte in enumerate(sorted(range(256), key=lambda b: (33 <= b <= 126 or 161 <= b <= 172 or b >= 174, b)))
}


class Reply:
    """One reply. `told` and `ended` are called in the thread that decodes; everything else in that of the reader."""

    def __init__(
        self, tokenizer: Words, sampling: Sampling, stops: frozenset[int], echo: str, before: Sequence[int] = ()
    ) -> None:
        """Begin; `echo` is shown before anything else, and `before` are the tokens with whose text the reply goes on."""
        self._tokenizer, self._stops, self._echo = tokenizer, stops, echo
        self._shows_stop, self._begins = sampling.include_stop_str_in_output, len(echo)
        self._text = TextStream(tokenizer.decode, sampling.stop, before, sampling.min_tokens, self._shows_stop)
        self.mask: Mask | None = None
        self.close: Callable[[], None] = lambda: None  #: called once when it has ended
        self._pieces: list[Piece] = []
        self._error: BaseException | None = None
        self.over = False
        self._row: Row | None = None
        self._ready = asyncio.Event()

    def tell(self, prompt: Sequence[int], scores: Sequence[Scores]) -> None:
        """Show the prompt, and how likely each of its tokens was but the first, of which nothing is said."""
        first = TokenLogprob(prompt[0], self._tokenizer.decode(prompt[:1]), None, self._bytes(prompt[0]))
        rest = [self._logprob(token, each) for token, each in zip(prompt[1:], scores, strict=True)]
        echo, self._echo, stream = self._echo, "", TextStream(self._tokenizer.decode)
        starts = [(stream.length, stream.push(token))[0] for token in prompt]
        self._pieces.append(Piece(echo, tuple(prompt), (first, *rest), starts=tuple(starts)))

    def echoed(self) -> list[Piece]:
        """Return what is told of the prompt."""
        echo, self._echo = self._echo, ""
        return self._pieces or [Piece(echo)]

    def told(self, row: Row) -> bool:
        """Take the newest token of a row; return whether the row goes on."""
        self._row = row
        token, spent = row.completion.tokens[-1], self._spent(row)
        logprobs = (self._logprob(token, row.scores[-1]),) if row.alternatives is not None else ()
        start = (self._begins + self._text.length,)
        if token in self._stops and row.completion.finished:
            text = self._text.push(token) if self._shows_stop and not self._special(token) else ""
            self._pieces.append(Piece(text, (token,), logprobs, usage=spent, starts=start))
            return False
        if self.mask is not None:
            self.mask.accept(token)
        self._pieces.append(Piece(self._text.push(token), (token,), logprobs, usage=spent, starts=start))
        return not self._text.stopped and not (self.mask is not None and self.mask.over)

    def ended(self, error: BaseException | None) -> None:
        """Be told that nothing more comes."""
        try:
            self.close()
            if error is None and self._row is not None:
                self._pieces.append(self._last(self._row))
            elif error is None or isinstance(error, ClosedError):
                error = Gone("the engine closed, or the request was cancelled, before the reply was done")
        except Exception as raised:
            error = raised
        self._error = error
        self.over = True

    def wake(self) -> None:
        """Have the reader look at what came."""
        self._ready.set()

    async def next(self) -> Piece | None:
        """Return what came since it was last asked, as one piece; None at the end. Raises what went wrong."""
        while not (over := self.over) and not self._pieces:
            self._ready.clear()
            if not self._pieces and not self.over:
                await self._ready.wait()
        if over and not self._pieces:  # looked at in this order: the last piece comes before the end
            if self._error is not None:
                raise self._error if isinstance(self._error, RequestError) else _internal(self._error)
            return None
        found: list[Piece] = []
        while self._pieces:
            found.append(self._pieces.pop(0))
        echo, self._echo = self._echo, ""
        return Piece(
            echo + "".join(piece.text for piece in found),
            tuple(token for piece in found for token in piece.tokens),
            tuple(each for piece in found for each in piece.logprobs),
            found[-1].finish_reason,
            found[-1].usage,
            found[-1].stop,
            tuple(start for piece in found for start in piece.starts),
        )

    def _last(self, row: Row) -> Piece:
        text, made = self._text.end(), row.completion
        whole = made.finished or self._text.stopped or (self.mask is not None and self.mask.over)
        reason: FinishReason = "stop" if whole else "length" if len(made.tokens) >= row.limit else "cancelled"
        return Piece(text, (), (), reason, self._spent(row), self._text.stop)

    def _spent(self, row: Row) -> Usage:
        return Usage(len(row.prompt), len(row.completion.tokens), row.reused)

    def _special(self, token: int) -> bool:
        return self._tokenizer.written(token) in self._tokenizer.template_spec.every_special

    def _logprob(self, token: int, scores: Scores) -> TokenLogprob:
        top = tuple(Alternative(*self._written(other), logprob, self._bytes(other)) for other, logprob in scores.top)
        return TokenLogprob(*self._written(token), scores.log_prob, self._bytes(token), top)

    def _written(self, token: int) -> tuple[int, str]:
        return token, text_of(self._tokenizer.decode, token, self._word)

    @cached_property
    def _word(self) -> list[int]:
        """A word before a token, so that the space with which the token begins is told."""
        return self._tokenizer.encode("a")[-1:]

    def _bytes(self, token: int) -> bytes:
        _, text = self._written(token)
        written = self._tokenizer.written(token) or ""
        if UNKNOWN not in text:
            return text.encode()
        if written.startswith("<0x"):
            return bytes([int(written[3:5], 16)])
        return bytes(SIGNS[sign] for sign in written) if set(written) <= set(SIGNS) else text.encode()


def _internal(error: BaseException) -> RequestError:
    return RequestError(f"the reply could not be made: {type(error).__name__}")

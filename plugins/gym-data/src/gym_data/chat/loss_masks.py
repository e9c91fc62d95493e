"""What of a rendered conversation is trained on: spans of characters, one for each answer.

Templates with `{% generation %}` say it themselves. For others, an answer is what rendering it adds to the prompt
before it. A template of either kind may show earlier turns differently from the last one (Qwen3 drops their reasoning);
such an answer is trained on in a sequence of its own that ends with it, which is how the model will meet it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

from gym_data.chat.render import GENERATION_END, GENERATION_START
from gym_data.chat.special_tokens import SpecialTokenQuoter
from gym_data.rows import Message

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Render = Callable[[Sequence[Message], bool], str]
Span = tuple[int, int]
_MARKS = re.compile(f"([{GENERATION_START}{GENERATION_END}])")


@dataclass(frozen=True)
class Rendered:
    """A rendered text, its quotes still in place, and the spans of it that are trained on."""

    text: str
    spans: tuple[Span, ...]
    last: int = -1  #: position of the last message that it shows

    def begins(self, text: str) -> bool:
        """Whether a text begins with this one, as far as it is trained on."""
        return text.startswith(self.text[: max((end for _, end in self.spans), default=0)])


def unmark(text: str) -> Rendered:
    """Take the generation marks out of a text; what they held are the spans."""
    pieces: list[str] = []
    spans: list[Span] = []
    position, depth, start = 0, 0, 0
    for piece in _MARKS.split(text):
        if piece == GENERATION_START:
            start = position if depth == 0 else start
            depth += 1
        elif piece == GENERATION_END:
            depth -= 1
            if depth == 0 and position > start:
                spans.append((start, position))
        else:
            pieces.append(piece)
            position += len(piece)
    return Rendered("".join(pieces), tuple(spans))


def by_marks(
    render: Render, messages: Sequence[Message], wanted: Collection[int], quoter: SpecialTokenQuoter
) -> list[Rendered]:
    """Return the fewest sequences in which the marks of every wanted answer are trained on, each with its closing token.

    Raises ValueError when the marks cannot be told apart by answer.
    """

    def shown(index: int) -> Rendered:
        whole = unmark(render(messages[: index + 1], False))
        before = unmark(render(messages[:index], False)).text
        if not whole.text.startswith(before):  # what ends a text may stand there (Phi-3)
            before = unmark(render(messages[:index], True)).text
        spans = _own(before, whole, messages, index)
        return Rendered(whole.text, tuple(_close(span, whole, quoter) for span in spans), index)

    return _fewest(shown, wanted)


def by_prefixes(
    render: Render,
    messages: Sequence[Message],
    wanted: Collection[int],
    quoter: SpecialTokenQuoter,
    stops: Collection[str] = (),
) -> list[Rendered]:
    """Return the fewest sequences in which every wanted answer is trained on as the model will meet it.

    `stops` are the tokens that the model stops at. Raises ValueError when rendering an answer does not continue its prompt.
    """

    def shown(index: int) -> Rendered:
        text, start = _answered(render, messages, index)
        text = text[: _stopped(text, start, quoter, stops)]
        return Rendered(text, (_trim((start, len(text)), text, quoter),), index)

    return _fewest(shown, wanted)


def _fewest(shown: Callable[[int], Rendered], wanted: Collection[int]) -> list[Rendered]:
    """Return the sequences of wanted answers, those in one that a later answer shows as they are alone.

    `shown` returns the text that ends with an answer, and the spans of this one.
    """
    pending = [shown(index) for index in sorted(wanted)]
    sequences: list[Rendered] = []
    while pending:
        text, last = pending[-1].text, pending[-1].last
        alike = [each.begins(text) for each in pending]
        spans = [span for each, same in zip(pending, alike, strict=True) if same for span in each.spans]
        sequences.append(Rendered(text, tuple(spans), last))
        pending = [each for each, same in zip(pending, alike, strict=True) if not same]
    return sequences[::-1]


def subtract(text: str, sequences: Sequence[Rendered]) -> Rendered:
    """Return a text as trained on but for what these sequences, with which it begins, train.

    Raises ValueError where it begins otherwise: what is not to be learnt stands elsewhere then.
    """
    for each in sequences:
        if not each.begins(text):
            shown = f"the chat template shows message {each.last + 1}, which is not to be learnt, differently in later turns"
            raise ValueError(f"{shown}; `train_on: assistant` learns the others")
    left, position = [], 0
    for start, end in sorted(span for each in sequences for span in each.spans):
        left.append((position, start))
        position = end
    left.append((position, len(text)))
    return Rendered(text, tuple(span for span in left if span[0] < span[1]))


def _own(before: str, whole: Rendered, messages: Sequence[Message], index: int) -> Sequence[Span]:
    """Return the marked spans of the answer that a text ends with; `before` is the text without it."""
    if whole.text.startswith(before):
        return [span for span in whole.spans if span[1] > len(before)]
    answers = sum(message["role"] == "assistant" for message in messages[: index + 1])
    if len(whole.spans) != answers:
        raise ValueError(f"the chat template does not show message {index + 1} as a continuation of its prompt")
    return whole.spans[-1:]


def _answered(render: Render, messages: Sequence[Message], index: int) -> tuple[str, int]:
    """Return a text that ends with an answer, and where the answer begins: behind its prompt.

    Raises ValueError where the template shows nothing of it there.
    """
    whole, prompt, asked = render(messages[: index + 1], False), render(messages[:index], True), ""
    if not whole.startswith(prompt):
        asked = render(messages[:index], False)
        if whole.startswith(asked):
            # The prompt for generation may open what a given answer lacks (a reasoning block): learn from where they part.
            prompt = prompt[: _common(prompt, whole)]
    if not whole.startswith(prompt):
        # Earlier messages are shown otherwise once the answer is there (gpt-oss drops the thoughts before a tool call).
        whole = prompt + _behind(render, messages, index, prompt, asked, whole)
    if len(prompt) == len(whole):
        raise ValueError(f"the chat template does not show message {index + 1} as a continuation of its prompt")
    return whole, len(prompt)


def _behind(render: Render, messages: Sequence[Message], index: int, prompt: str, asked: str, whole: str) -> str:
    """Return what a text shows behind the message before an answer, if it shows that one as the prompt does; else nothing."""
    if index < 3 or not prompt.startswith(asked):  # there is no earlier answer
        return ""
    begin = _common(render(messages[: index - 1], False), asked)
    place = whole.rfind(prompt[begin:]) if begin < len(asked) else -1
    return whole[place + len(prompt) - begin :] if place >= 0 else ""


def _common(one: str, other: str) -> int:
    """Return how many characters two texts begin with."""
    same = (mine == theirs for mine, theirs in zip(one, other, strict=False))
    return sum(1 for _ in takewhile(bool, same))


def _trim(span: Span, text: str, quoter: SpecialTokenQuoter) -> Span:
    """Take blanks after the closing token off: generation has stopped before them."""
    start, end = span
    if quoter.ends_special(text[start:end]):
        end = start + quoter.special_spans(text[start:end])[-1][1]
    return start, end


def _stopped(text: str, start: int, quoter: SpecialTokenQuoter, stops: Collection[str]) -> int:
    """Return where a text ends without the token that ends all of it, where the answer has ended with a stop before it.

    Phi-3 writes one behind the last turn alone, which generation never comes to.
    """
    tokens = quoter.special_spans(text[start:])[-2:]
    if len(tokens) == 2 and quoter.ends_special(text[start:]):
        (begin, end), (last, _) = ((start + first, start + behind) for first, behind in tokens)
        if text[begin:end] in stops and not text[end:last].strip():
            return last
    return len(text)


def _close(span: Span, whole: Rendered, quoter: SpecialTokenQuoter) -> Span:
    """Extend a marked span over the token that closes the turn, if the template writes it after the mark."""
    tokens = quoter.special_spans(whole.text)
    closing = whole.text[tokens[-1][0] : tokens[-1][1]] if tokens else ""
    ends_text = bool(tokens) and not whole.text[tokens[-1][1] :].strip()
    if ends_text and whole.text.startswith(closing, span[1]):
        return span[0], span[1] + len(closing)
    return span


def named(rendered: Rendered, quoter: SpecialTokenQuoter) -> Rendered:
    """Give the template's own tokens their other names and undo the quotes; the spans move along."""
    edges = sorted({0, len(rendered.text), *(edge for span in rendered.spans for edge in span)})
    moved, pieces, length = {0: 0}, [], 0
    for start, end in pairwise(edges):
        piece = quoter.name(rendered.text[start:end])
        pieces.append(piece)
        length += len(piece)
        moved[end] = length
    return Rendered("".join(pieces), tuple((moved[start], moved[end]) for start, end in rendered.spans))


def tokens_within(offsets: Sequence[tuple[int, int]], spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
    """Return whether each token holds a character of a span; never the first, before which nothing comes."""
    import numpy as np  # not where this module is read: a process that renders needs none, and would start half as fast

    trained = np.zeros(len(offsets), dtype=bool)
    if spans:
        edges = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
        for start, end in spans:
            trained |= (edges[:, 0] < end) & (edges[:, 1] > start)
        trained[:1] = False
    return trained

"""What of a rendered conversation is trained on: spans of characters, one for each answer.

Templates with `{% generation %}` say it themselves. For others, an answer is what rendering it adds to the prompt
before it. A template may show earlier turns differently from the last one (Qwen3 drops their reasoning); such an answer
is trained on in a sequence of its own that ends with it, which is how the model will meet it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
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
    """Return the one sequence in which the marked answers are trained on, each with its closing token.

    Raises ValueError when the marks cannot be told apart by answer.
    """
    whole = unmark(render(messages, False))
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    counts = list(range(1, len(answers) + 1))
    if len(whole.spans) != len(answers):
        counts = [len(unmark(render(messages[: index + 1], False)).spans) for index in answers]
    if counts and (counts[-1] != len(whole.spans) or counts != sorted(counts)):
        raise ValueError("the chat template marks earlier answers only while they are the last; use `train_on: last`")
    spans: list[Span] = []
    for index, first, last in zip(answers, [0, *counts], counts, strict=False):
        if index in wanted:
            spans.extend(whole.spans[first:last])
    return [Rendered(whole.text, tuple(_close(span, whole, quoter) for span in spans))]


def by_prefixes(
    render: Render, messages: Sequence[Message], wanted: Collection[int], quoter: SpecialTokenQuoter
) -> list[Rendered]:
    """Return the fewest sequences in which every wanted answer is trained on as the model will meet it.

    Raises ValueError when rendering an answer does not continue its prompt.
    """
    pending = sorted(wanted)
    sequences = []
    while pending:
        last = pending[-1]
        whole = render(messages[: last + 1], False)
        spans, rest = [], []
        for index in pending:
            after = whole if index == last else render(messages[: index + 1], False)
            span = _added(render, messages, index, after, whole)
            if span is None:
                rest.append(index)
            else:
                spans.append(_trim(span, whole, quoter))
        if last in rest:
            raise ValueError(f"the chat template does not show message {last + 1} as a continuation of its prompt")
        sequences.append(Rendered(whole, tuple(spans), last))
        pending = rest
    return sequences[::-1]


def subtract(text: str, spans: Collection[Span]) -> Rendered:
    """Return a text as trained on but for these spans."""
    left, position = [], 0
    for start, end in sorted(spans):
        left.append((position, start))
        position = end
    left.append((position, len(text)))
    return Rendered(text, tuple(span for span in left if span[0] < span[1]))


def _added(render: Render, messages: Sequence[Message], index: int, after: str, whole: str) -> Span | None:
    """Return the span that an answer adds to its prompt, if the whole text shows both as they were alone.

    `after` is the text that ends with the answer.
    """
    prompt = render(messages[:index], True)
    if not whole.startswith(after):
        return None
    if not after.startswith(prompt):
        # The prompt for generation may open what a given answer lacks (a reasoning block): learn from where they part.
        if not after.startswith(render(messages[:index], False)):
            return None
        same = (mine == theirs for mine, theirs in zip(prompt, after, strict=False))
        prompt = prompt[: sum(1 for _ in takewhile(bool, same))]
    return (len(prompt), len(after)) if len(prompt) < len(after) else None


def _trim(span: Span, text: str, quoter: SpecialTokenQuoter) -> Span:
    """Take blanks after the closing token off: generation has stopped before them."""
    start, end = span
    if quoter.ends_special(text[start:end]):
        end = start + quoter.special_spans(text[start:end])[-1][1]
    return start, end


def _close(span: Span, whole: Rendered, quoter: SpecialTokenQuoter) -> Span:
    """Extend a marked span over the token that closes the turn, if the template writes it after the mark."""
    tokens = quoter.special_spans(whole.text)
    closing = whole.text[tokens[-1][0] : tokens[-1][1]] if tokens else ""
    ends_text = bool(tokens) and not whole.text[tokens[-1][1] :].strip()
    if ends_text and whole.text.startswith(closing, span[1]):
        return span[0], span[1] + len(closing)
    return span


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

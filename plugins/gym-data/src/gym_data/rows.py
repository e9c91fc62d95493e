"""What a row means once its format is read: structured examples, before any template or token."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, NamedTuple

Message = dict[str, Any]
"""`role` (system, user, assistant, tool), `content`, and perhaps `tool_calls`, `reasoning_content`, `name` and other keys."""
Tools = Sequence[Mapping[str, Any]]  #: functions as OpenAI describes them
APART = "pairs with different prompts, each answer learnt after its own"
MEDIA = ("image", "video", "audio")  #: what rows usually have beside text; a format and a reader may agree on others


def mark_of(medium: str) -> str:
    """Return what stands for an image, a video... in the content of a message."""
    return f"<{medium}>"


MARKS = tuple(map(mark_of, MEDIA))
MARK = MARKS[0]
MARKED = f"rows with {', '.join(MARKS[:-1])} or {MARKS[-1]} in their text, which stay text: only text is read"
GOOD, BAD = "desirable answers", "undesirable answers"
RIGHT, WRONG = "steps judged right", "steps judged wrong"


class Named(NamedTuple):
    """An image, a video or a sound, as a row names it."""

    medium: str  #: such as `image`
    value: Any  #: a path, bytes, or a mapping with `path` or `bytes`


class Row:
    """Base of what a row can mean."""

    @property
    def remarks(self) -> Sequence[str]:
        """Return what the report counts about rows that are kept."""
        return ()

    @property
    def beside(self) -> Sequence[Named]:
        """Return the media of its conversations, as the row names them."""
        return ()


@dataclass(frozen=True)
class Conversation(Row):
    """Messages to learn the answers of."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()  #: OpenAI function descriptions
    muted: frozenset[int] = frozenset()  #: messages that say `train: false`
    values: Mapping[str, Any] = field(default_factory=dict)  #: what its chat template is handed besides
    media: tuple[
        Named, ...
    ] = ()  #: one for each mark in the contents of its messages; those of each medium are in order

    @property
    def beside(self) -> Sequence[Named]:
        """Return `media`."""
        return self.media

    @property
    def remarks(self) -> Sequence[str]:
        """Say where a text stands for a picture or a sound that nobody is shown."""
        texts = [message["content"] for message in self.messages]
        marks = {*MARKS} - {mark_of(each.medium) for each in self.media}
        return (MARKED,) if any(mark in text for text in texts for mark in marks) else ()

    @property
    def answers(self) -> list[int]:
        """Return the positions of the assistant's messages."""
        return [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]

    @property
    def answer(self) -> str:
        """Return the text of the answer that it ends with; empty where it ends with none."""
        ended = self.messages and self.messages[-1]["role"] == "assistant"
        return str(self.messages[-1]["content"]) if ended else ""

    @property
    def before(self) -> Conversation:
        """Return it without its last message."""
        return replace(self, messages=self.messages[:-1], muted=frozenset())

    @property
    def unanswered(self) -> Conversation:
        """Return it without the answers that it ends with."""
        end = len(self.messages)
        while end and self.messages[end - 1]["role"] == "assistant":
            end -= 1
        return replace(self, messages=self.messages[:end], muted=frozenset())


@dataclass(frozen=True)
class Segmented(Row):
    """Texts in a row as the model reads them, without a template."""

    parts: tuple[tuple[str, bool], ...]  #: texts, and whether each is learnt
    begun: bool = False  #: whether the token that begins a text stands before them, where the tokenizer puts one
    ended: bool = False  #: whether the token that ends a text follows; learnt as the last of them is


@dataclass(frozen=True)
class Text(Row):
    """A document to learn all of."""

    text: str


@dataclass(frozen=True)
class Preference(Row):
    """Two conversations, the first of which was preferred. They may part anywhere, even in the prompt."""

    chosen: Conversation
    rejected: Conversation
    margin: float = 0.0  #: how much better the first is said to be

    @property
    def shared(self) -> int:
        """Return the number of messages that both begin with; the last of each is never among them."""
        pairs = zip(self.chosen.messages[:-1], self.rejected.messages[:-1], strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    @property
    def prompt(self) -> Conversation:
        """Return what both begin with."""
        return replace(self.chosen, messages=self.chosen.messages[: self.shared], muted=frozenset())

    @property
    def beside(self) -> Sequence[Named]:
        """Return the media of both."""
        return (*self.chosen.media, *self.rejected.media)

    @property
    def remarks(self) -> Sequence[str]:
        """Say where they part in something that is no answer."""
        parted = [side.messages[self.shared]["role"] for side in (self.chosen, self.rejected)]
        return () if parted == ["assistant", "assistant"] else (APART,)


@dataclass(frozen=True)
class Feedback(Row):
    """A conversation whose last answer was labelled."""

    conversation: Conversation
    desirable: bool

    @property
    def beside(self) -> Sequence[Named]:
        """Return the media of the conversation."""
        return self.conversation.media

    @property
    def remarks(self) -> Sequence[str]:
        """Say how the answer was judged."""
        return (GOOD if self.desirable else BAD,)


@dataclass(frozen=True)
class JudgedText(Row):
    """A document that was labelled, all of it."""

    text: str
    desirable: bool

    @property
    def remarks(self) -> Sequence[str]:
        """Say how it was judged."""
        return (GOOD if self.desirable else BAD,)


@dataclass(frozen=True)
class Stepwise(Row):
    """An answer whose steps were judged one by one."""

    prompt: Conversation
    steps: tuple[str, ...]
    labels: tuple[float | None, ...]  #: of each step: from 0, wrong, to 1, right; None where nobody judged it
    separator: str  #: what stands behind each step

    @property
    def beside(self) -> Sequence[Named]:
        """Return the media of the prompt."""
        return self.prompt.media


@dataclass(frozen=True)
class Prompt(Row):
    """A conversation that asks for an answer, and its row, for whoever judges the answer."""

    conversation: Conversation
    row: Mapping[str, Any]
    """All columns; an answer that the row holds is in column `answer`, unless it has another there."""

    @property
    def beside(self) -> Sequence[Named]:
        """Return the media of the conversation."""
        return self.conversation.media


Structured = Conversation | Segmented | Text | Preference | Feedback | JudgedText | Stepwise | Prompt
#: What an algorithm can ask for, and the rows that serve it: a conversation is text, a pair two judgements.
SHAPES: dict[str, tuple[type[Structured], ...]] = {
    "conversation": (Conversation, Segmented),
    "text": (Text, Conversation),
    "preference": (Preference,),
    "feedback": (Feedback, JudgedText, Preference),
    "stepwise": (Stepwise,),
    "prompt": (Prompt,),
}
#: Shapes whose rows say how good answers are: a sound row with nothing to compare is left out of them, not refused.
JUDGED = ("preference", "feedback", "stepwise")
#: Judgements of which a dataset should hold both.
OPPOSITES = {"feedback": (GOOD, BAD), "stepwise": (RIGHT, WRONG)}


def judged_steps(labels: Sequence[float]) -> Sequence[str]:
    """Return what is said of steps with these labels."""
    return [RIGHT if label > 0.5 else WRONG for label in labels]


def content_key(row: Structured) -> bytes:
    """Return 16 bytes that are equal for rows of equal content."""
    text = json.dumps(row, sort_keys=True, default=_plain)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _plain(part: Any) -> Any:
    return sorted(part) if isinstance(part, frozenset) else vars(part) if isinstance(part, Row) else str(part)

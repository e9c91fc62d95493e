"""Shapes of rows: which column plays which part. These classes import nothing heavy; readers are in modules beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, SerializeAsAny

from gym_core import Slot
from gym_data.kinds import Format

__all__ = ["Alpaca", "Feedback", "Messages", "Preference", "Segments", "ShareGPT", "Stepwise", "Text"]


class WithMedia(Format):
    """A format whose rows may have images, videos and sounds."""

    images: str = "images"
    """Column of the images, a path or a list of them, one for each `<image>` in the text."""
    videos: str = "videos"
    """Column of the videos, a path or a list of them, one for each `<video>` in the text."""
    audios: str = "audios"
    """Column of the sounds, a path or a list of them, one for each `<audio>` in the text."""

    @property
    def media(self) -> Mapping[str, str]:
        """Return these columns by medium."""
        return {"image": self.images, "video": self.videos, "audio": self.audios}


class Alpaca(WithMedia):
    """An instruction, perhaps with an input, and its answer; columns `instruction`, `input`, `output`."""

    target: ClassVar[str] = "gym_data.formats.alpaca:AlpacaReader"
    example: ClassVar[Mapping[str, Any]] = {
        "instruction": "Name the capital.",
        "input": "France",
        "output": "It is Paris.",
    }

    prompt: str = "instruction"
    """Column of the instruction."""
    query: str | None = "input"
    """Column of further input, put on a new line under the instruction."""
    response: str | None = "output"
    """Column of the answer."""
    history: str | None = None
    """Column of earlier turns, a list of [instruction, answer]; these answers are trained on as well."""
    system: str | None = None
    """Column of the system message."""
    tools: str | None = None
    """Column of the tools on offer."""
    chat_template_kwargs: str | None = "chat_template_kwargs"
    """Column of what the chat template is handed for this row, such as {"enable_thinking": false}, or its JSON text."""


class ConversationFormat(WithMedia):
    """A list of messages, each with a role and a content."""

    target: ClassVar[str] = "gym_data.formats.messages:ConversationReader"

    messages: str = "messages"
    """Column of the messages."""
    completion: str | None = None
    """Column of the messages that answer, or of their text, where it is kept apart (TRL's prompt and completion): they alone
    are trained on."""
    tools: str | None = "tools"
    """Column of the tools on offer: a list of function descriptions, or its JSON text."""
    system: str | None = None
    """Column of the system message, for rows that keep it apart; one that begins the messages stands in its place."""
    chat_template_kwargs: str | None = "chat_template_kwargs"
    """Column of what the chat template is handed for this row, such as {"enable_thinking": false}, or its JSON text."""
    role: str = "role"
    """Key of a message's role."""
    content: str = "content"
    """Key of a message's text."""
    user: str = "user"
    """Role of the user."""
    assistant: str = "assistant"
    """Role of the assistant."""
    system_role: str = "system"
    """Role of the system message."""
    observation: str = "tool"
    """Role of a tool's result."""
    function: str = "function_call"
    """Role of a tool call written as JSON text: {"name": ..., "arguments": {...}}, or a list of them."""

    def for_messages(self, column: str) -> ConversationFormat:
        """Return the same format for another column."""
        return self.model_copy(update={"messages": column})


class Messages(ConversationFormat):
    """OpenAI's messages: `role`, `content`, `tool_calls`; `train: false` or `weight: 0` keeps an answer unlearnt.

    Its older `function_call` and the role `function` are read as well.
    """

    example: ClassVar[Mapping[str, Any]] = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2 + 2?"},
            {"role": "assistant", "content": "Four."},
            {"role": "user", "content": "And 3 + 3?"},
            {"role": "assistant", "content": "Six."},
        ]
    }


class ShareGPT(ConversationFormat):
    """ShareGPT's conversations: `from` human, gpt, system, function_call or observation, and `value`."""

    example: ClassVar[Mapping[str, Any]] = {
        "conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "Four."}]
    }

    messages: str = "conversations"
    """Column of the messages."""
    role: str = "from"
    """Key of a message's role."""
    content: str = "value"
    """Key of a message's text."""
    user: str = "human"
    """Role of the user."""
    assistant: str = "gpt"
    """Role of the assistant."""
    observation: str = "observation"
    """Role of a tool's result."""


class Segments(Format):
    """Texts in a row as the model reads them, each with whether it is learnt (axolotl's `input_output`); no template."""

    target: ClassVar[str] = "gym_data.formats.segments:SegmentsReader"
    example: ClassVar[Mapping[str, Any]] = {
        "segments": [{"text": "2 + 2? ", "label": False}, {"text": "Four.", "label": True}]
    }

    segments: str = "segments"
    """Column of the texts: a list of objects with `text` and `label`, true or false, or its JSON text."""


class Text(Format):
    """Plain text to continue."""

    target: ClassVar[str] = "gym_data.formats.text:TextReader"
    example: ClassVar[Mapping[str, Any]] = {"text": "Once upon a time."}

    text: str = "text"
    """Column of the text."""


class Preference(Format):
    """Two answers to one prompt, the better one marked."""

    target: ClassVar[str] = "gym_data.formats.preferences:PreferenceReader"
    example: ClassVar[Mapping[str, Any]] = {"instruction": "2 + 2?", "chosen": "Four.", "rejected": "Five."}

    prompt: Annotated[SerializeAsAny[Format] | None, Slot("formats")] = None
    """Format of the prompt's columns, such as `alpaca` or `sharegpt`; without it, told from the columns."""
    chosen: str = "chosen"
    """Column of the preferred answer: text, a message, all messages of the conversation, or those after the prompt."""
    rejected: str = "rejected"
    """Column of the other answer."""
    margin: str | None = "margin"
    """Column of how much better the preferred answer is, a number; for reward models, which can ask for that much."""


class Feedback(Format):
    """A conversation and whether its last answer is good."""

    target: ClassVar[str] = "gym_data.formats.preferences:FeedbackReader"
    example: ClassVar[Mapping[str, Any]] = {
        "messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "Four."}],
        "label": True,
    }

    conversation: Annotated[SerializeAsAny[Format] | None, Slot("formats")] = None
    """Format of the conversation's columns, or `text`, of which all was judged; without it, told from the columns."""
    label: str = "label"
    """Column of the judgement: true or false, as a table has it (1, 0) or in words."""


class Stepwise(Format):
    """An answer in steps, and whether each of them is right: what process reward models learn from."""

    target: ClassVar[str] = "gym_data.formats.stepwise:StepwiseReader"
    example: ClassVar[Mapping[str, Any]] = {
        "prompt": "2 + 2 + 3?",
        "completions": ["2 + 2 is 4.", "4 + 3 is 8."],
        "labels": [True, False],
    }

    prompt: Annotated[SerializeAsAny[Format] | None, Slot("formats")] = None
    """Format of the prompt's columns; without it, told from the columns."""
    steps: str = "completions"
    """Column of the steps, a list of texts."""
    labels: str = "labels"
    """Column of a judgement for each step: true, false, how likely it is right (0 to 1), or null where nobody judged it."""
    separator: Annotated[str, Field(min_length=1)] = "\n"
    """What is put behind each step. The score stands there; a reward that reads the model splits answers at it."""

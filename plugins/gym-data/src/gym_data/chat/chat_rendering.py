"""What the chat templates of one tokenizer make of conversations: texts, what of them is trained on, and what they leave out.

Templates are foreign code: `gym_data.chat.template_worker` runs this in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from gym_data.chat import loss_masks, template_omissions
from gym_data.chat.loss_masks import Rendered
from gym_data.chat.render import ChatTemplate
from gym_data.chat.special_tokens import SpecialTokenQuoter
from gym_data.chat.tool_calls import Calls, calls_of_template
from gym_data.rows import Message, mark_of

PROBE = "xq7j"  #: no text of a template
CALL = {"type": "function", "id": "abcdefghi", "function": {"name": "f", "arguments": {"a": "b"}}}


@dataclass(frozen=True)
class ChatTemplateSpec:
    """What a tokenizer says of its chats, as plain data."""

    templates: Mapping[str, str]  #: texts by name; `default` is the usual one
    values: Mapping[str, Any]  #: what templates are handed beside the messages
    special: Sequence[str]  #: special tokens that contents hold as text; none where contents may write them
    further: Sequence[str]  #: other added tokens
    stops: Sequence[str]  #: tokens that the model stops at
    every_special: Sequence[str]  #: all special tokens
    parts: Sequence[str] = ()
    """Media that contents may hold, which are then handed over as parts to templates that take these: those that are lists of
    parts as they are, and in others each mark, such as `<image>`, is one."""

    @cached_property
    def data(self) -> dict[str, Any]:
        """The fields."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def key(self) -> str:
        """A name for what they hold."""
        return hashlib.sha256(json.dumps(self.data, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class RenderRequest:
    """A conversation and what is wanted of it."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    wanted: Collection[int] = ()  #: answers to learn
    everything: bool = False  #: all but the unwanted answers is trained on
    prompt: bool = False  #: the text ends where the assistant is to write, and nothing is trained on
    values: Mapping[str, Any] = field(default_factory=dict)
    """What the template is handed besides, in place of the tokenizer's."""


@dataclass(frozen=True)
class RenderResult:
    """What became of a conversation."""

    sequences: list[Rendered]
    lost: Sequence[str] = ()  #: what the template leaves out, see `gym_data.chat.template_omissions`


class ChatRenderer:
    """Renders conversations. Methods raise ValueError where a template refuses them or leaves out what it must not."""

    def __init__(self, spec: ChatTemplateSpec) -> None:
        """Hold the templates; nothing is compiled yet."""
        self.spec = spec
        self._templates = {name: ChatTemplate(text) for name, text in spec.templates.items()}
        self._calls: dict[str, Calls] = {}
        self._handovers: dict[tuple[str, bool], str] = {}
        self._parts: dict[str, bool] = {}

    @cached_property
    def control(self) -> list[str]:
        """Added tokens that are not special but that a template writes: users' text does not get to write them."""
        literals = "\0".join(template.literals for template in self._templates.values())
        return [token for token in self.spec.further if token in literals and not token.isspace()]

    @cached_property
    def reads(self) -> list[str]:
        """Names of the values that the templates ask for and the tokenizer does not say, such as `enable_thinking`."""
        found = {name for each in self._templates.values() for name in each.reads} - self.spec.values.keys()
        return sorted(name for name in found if not name.endswith("_token"))  # which a tokenizer has, or has not

    @cached_property
    def quoter(self) -> SpecialTokenQuoter:
        """What keeps special-token text in contents text."""
        return SpecialTokenQuoter(self.spec.special, self.control if self.spec.special else (), self.spec.every_special)

    def chat(self, request: RenderRequest) -> RenderResult:
        """Render a whole conversation, or a prompt, as transformers does, the answers marked; nothing is checked."""
        messages, render = self._renderer(request)
        whole = loss_masks.unmark(render(messages, request.prompt))
        answers = _answers(messages)
        if answers and not request.prompt:
            found = self._find(messages, render, answers, request)[-1]
            whole = Rendered(whole.text, found.spans if whole.text.startswith(found.text) else ())
        return RenderResult([whole])

    def learnable(self, request: RenderRequest) -> RenderResult:
        """Return the sequences in which the wanted answers are trained on, or with `everything` all but unwanted answers.

        With `prompt` it is the one sequence that asks for an answer.
        """
        messages, render = self._renderer(request)
        if request.prompt:
            found = [Rendered(loss_masks.unmark(render(messages, True)).text, ())]
        elif request.everything:
            unwanted = set(_answers(messages)) - set(request.wanted)
            apart = self._find(messages, render, unwanted, request) if unwanted else []
            found = [loss_masks.subtract(loss_masks.unmark(render(messages, False)).text, apart)]
        else:
            found = self._find(messages, render, request.wanted, request) if request.wanted else []
            found = [self._closed(sequence, messages, request) for sequence in found]
        if not found:
            return RenderResult(found)
        learnt = "\0".join(each.text[start:end] for each in found for start, end in each.spans)
        shown = messages[: found[-1].last + 1 or None]  # what follows the last answer to learn is not looked at
        template_omissions.refuse(found[-1].text, learnt, shown, request.tools, request.wanted, self._marks)
        return RenderResult(found, template_omissions.lost(found[-1].text, learnt, shown, request.wanted))

    def _renderer(self, request: RenderRequest) -> tuple[list[Message], loss_masks.Render]:
        """Quote the messages and return them with a function that renders some of them."""
        name = self._name(bool(request.tools))
        template, tools = self._templates[name], self.quoter.quote(list(request.tools)) if request.tools else None

        values = {**self.spec.values, **self.quoter.quote(dict(request.values))}

        def render(some: Sequence[Message], generation_prompt: bool) -> str:
            return template.render(self._handed(name, some), tools, generation_prompt, values)

        messages = [_aliased(message) for message in request.messages]
        if any(message.get("tool_calls") for message in messages):
            messages = self._calls_of(name).written(messages)
        return self.quoter.quote_messages(messages), render

    @cached_property
    def _media(self) -> dict[str, str]:
        """The media by what stands for one in contents whose special tokens are quoted."""
        return {str(self.quoter.quote(mark_of(medium))): medium for medium in self.spec.parts}

    @property
    def _marks(self) -> str:
        """Return a pattern for what stands for a medium."""
        return "|".join(map(re.escape, self._media)) or "\0"

    def _handed(self, name: str, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages with contents as a template takes them: as parts where there may be media, or where it must.

        A template that takes no parts writes them as Python does, or fails; one that takes no texts leaves them out, or fails.
        """
        if name not in self._parts:
            shows = self._shows(name, PROBE) and not self.spec.parts
            self._parts[name] = not shows and self._shows(name, [{"type": "text", "text": PROBE}])
        return [self._in_parts(message) for message in messages] if self._parts[name] else messages

    def _shows(self, name: str, content: Any) -> bool:
        """Whether a template shows the text of a content, and nothing of how parts are made."""
        try:
            text = self._templates[name].render([{"role": "user", "content": content}], None, False, self.spec.values)
        except ValueError:
            return False
        return PROBE in text and "'text'" not in text

    def _in_parts(self, message: Message) -> Message:
        """Return a message with the texts and media of its content as transformers hands them to templates."""
        content = message["content"]
        if not isinstance(content, str):  # parts already, or nothing beside a tool call
            return message
        apart = self.spec.parts and message["role"] != "assistant"
        pieces = re.split(f"({self._marks})", content) if apart else [content]
        parts = [
            {"type": self._media[piece]} if number % 2 else {"type": "text", "text": piece}
            for number, piece in enumerate(pieces)
            if piece or len(pieces) == 1
        ]
        return {**message, "content": parts}

    def _find(
        self, messages: Sequence[Message], render: loss_masks.Render, wanted: Collection[int], request: RenderRequest
    ) -> list[Rendered]:
        if self._templates[self._name(bool(request.tools))].marks_generation:
            return loss_masks.by_marks(render, messages, wanted, self.quoter)
        return loss_masks.by_prefixes(render, messages, wanted, self.quoter, self.spec.stops)

    def _name(self, tools: bool) -> str:
        return "tool_use" if tools and "tool_use" in self._templates else "default"

    def _calls_of(self, name: str) -> Calls:
        if name not in self._calls:
            self._calls[name] = calls_of_template(lambda some: self._plainly(name, some))
        return self._calls[name]

    def _plainly(self, name: str, messages: Sequence[Message]) -> str:
        handed = self._handed(name, messages)
        return loss_masks.unmark(self._templates[name].render(handed, None, False, self.spec.values)).text

    def _closed(self, sequence: Rendered, messages: Sequence[Message], request: RenderRequest) -> Rendered:
        """Have an answer that no special token ends learn the token at which the next turn begins, if the model stops there.

        So do GLM-4.5 and its relatives: they end their turn by writing whose is next.
        """
        if not self.spec.stops:
            return sequence
        text, spans = sequence.text, []
        for start, end in sequence.spans:
            if not self.quoter.ends_special(text[start:end]):
                name = self._name(bool(request.tools))
                last = not text[end:].strip()
                calling = bool(messages[sequence.last].get("tool_calls"))
                tokens = {self._handover(name, calling)} if last else set(self.spec.stops)
                text = text[:end] + "".join(tokens) if last else text
                end += next((len(token) for token in tokens if text.startswith(token, end)), 0)
            spans.append((start, end))
        return Rendered(text, tuple(spans), sequence.last)

    def _handover(self, name: str, calling: bool) -> str:
        """Return the token that follows an answer in the next turn, where the model stops at it; else nothing."""
        if (name, calling) not in self._handovers:
            answer: Message = {"role": "assistant", "content": "" if calling else "b"}
            if calling:
                answer["tool_calls"] = [CALL]
            following: Message = {"role": "tool", "content": "c", "tool_call_id": CALL["id"]}
            some = [
                {"role": "user", "content": "a"},
                answer,
                following if calling else {"role": "user", "content": "c"},
            ]
            some = self._calls_of(name).written(some) if calling else some
            try:
                before, whole = self._plainly(name, some[:2]), self._plainly(name, some)
            except ValueError:
                before, whole = "", ""
            after = whole.removeprefix(before) if whole.startswith(before) else ""
            token = next((token for token in self.spec.stops if after.startswith(token)), "")
            self._handovers[name, calling] = token
        return self._handovers[name, calling]


def _answers(messages: Sequence[Message]) -> list[int]:
    return [index for index, message in enumerate(messages) if message["role"] == "assistant"]


def _aliased(message: Message) -> Message:
    """Return a message with its thoughts under the names that chat templates read, as transformers hands them over."""
    thoughts = next((message[key] for key in template_omissions.REASONING if message.get(key) is not None), None)
    return message if thoughts is None else {"thinking": thoughts, **message, "reasoning_content": thoughts}

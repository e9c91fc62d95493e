"""From conversations to pairs of prompt and answer in tokens, each text encoded by itself: where one ends, no token goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import date
from functools import cached_property
from typing import Any, NamedTuple

from gym_core import DataError
from gym_data.chat.loss_masks import Rendered
from gym_data.chat.template_omissions import arguments
from gym_data.rows import Conversation, mark_of
from gym_data.tokenizer import Tokenizer
from gym_llamafactory.chat import LlamaFactory, formats, tools
from gym_llamafactory.chat.formats import CONTENT, SLOT, ChatFormat, Slots

Element = str | int  #: a text that is encoded by itself, or a token
Pair = tuple[list[int], list[int]]  #: a prompt and its answer
_ASKS, _ANSWERS = ("user", "observation"), ("assistant", "function")


class Said(NamedTuple):
    """A message, tool calls and results in roles of their own."""

    role: str
    content: str
    calls: tuple[tools.Call, ...] = ()


class Turns:
    """Writes conversations in one format for one tokenizer."""

    def __init__(self, config: LlamaFactory, tokenizer: Tokenizer, system: str | None, day: date) -> None:
        """Take the options, the system message of conversations that have none, and what today is."""
        self.config, self.tokenizer, self.day = config, tokenizer, day
        self.format = self._format()
        self.media = tokenizer.media
        self.system = self.format.default_system if system is None else system

    def _format(self) -> ChatFormat:
        try:
            found = formats.told(self.tokenizer) if self.config.format is None else formats.named(self.config.format)
        except ValueError as error:
            raise DataError(
                f"the model's own chat template cannot be read as LLaMA-Factory reads it: {error}",
                key="data.template",
                fix="name one, such as `template: qwen3`",
            ) from error
        # Calls in a format that is chosen have nothing around them but the end of a turn, as there.
        return replace(found, function=found.bare_answer) if self.config.tool_format else found

    @cached_property
    def eos(self) -> list[int]:
        """The token that ends a text; none where there is none."""
        first = self.tokenizer.token_id(self.format.stop_words[0]) if self.format.replace_eos else self.tokenizer.eos_id
        return [] if first is None else [first]

    def elements(self, conversation: Conversation, history: bool, alone: bool) -> list[list[Element]]:
        """Return the elements of each message, of which every second one is an answer.

        `history` says whether earlier answers keep their thoughts, `alone` whether the last answer alone is one to learn. Raises
        ValueError where messages do not take turns, or tools are not written so here.
        """
        media = {each.medium for each in conversation.media}
        if unknown := sorted(media - (self.format.media.keys() if self.media else set())):
            raise ValueError(f"it has {unknown[0]}s, and it is not known how this template writes them")
        system, said = self._said(conversation)
        thoughts = self._thoughts(said, history, alone) if self.format.reasons else {}
        said = [each._replace(content=thoughts.get(index, each.content)) for index, each in enumerate(said)]
        found = [self._message(each, media) for each in said]
        instructions = self._instructions(system, conversation.tools)
        if self.format.behaves == "system_in_user":
            found[0] = self._with_instructions(instructions, said[0], media)
        elif instructions:
            found[0] = [*self._filled(self.format.system, instructions), *found[0]]
        found[0] = [*self._filled(self.format.prefix, ""), *found[0]]
        if self.format.reasons:
            for index in range(len(said) - 1 if alone else 1, len(said), 2):
                if not any(word.strip() in said[index].content for word in self.format.thought_words):
                    learnt = bool(self.config.enable_thinking)
                    at = index if learnt else index - 1
                    empty = self.format.empty_thought
                    found[at] = [empty, *found[at]] if learnt else [*found[at], empty]
        return found

    def pairs(self, batch: Iterable[list[list[Element]]]) -> list[list[Pair]]:
        """Return prompts and answers of several conversations in tokens."""
        several = list(batch)
        texts = [each for messages in several for message in messages for each in message if isinstance(each, str)]
        encoded = iter(self.tokenizer.encode_rendered([Rendered(text, ()) for text in texts]))

        def ids(message: list[Element]) -> list[int]:
            return [
                token for each in message for token in ([each] if isinstance(each, int) else next(encoded)[0].tolist())
            ]

        tokens = [[ids(message) for message in messages] for messages in several]
        return [list(zip(messages[::2], messages[1::2], strict=True)) for messages in tokens]

    def _said(self, conversation: Conversation) -> tuple[str, list[Said]]:
        """Return the system message and the others, which must take turns."""
        messages = list(conversation.messages)
        system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
        said: list[Said] = []
        for message in messages:
            role, content = message["role"], str(message["content"])
            calls = tuple(
                (call["function"]["name"], arguments(call["function"])) for call in message.get("tool_calls", ())
            )
            role = "function" if calls else "observation" if role == "tool" else role
            if role == "observation" and said and said[-1].role == role:
                joined = f"{said[-1].content}\n</tool_response>\n<tool_response>\n{content}"
                said[-1] = Said(role, joined)
            else:
                said.append(Said(role, content, calls))
        for index, each in enumerate(said):
            if each.role not in (_ANSWERS if index % 2 else _ASKS):
                raise ValueError(f"message {index + 1} ({each.role}) is out of turn")
        if not said or len(said) % 2:
            raise ValueError("it does not end with an answer")
        return system, said

    def _thoughts(self, said: Sequence[Said], history: bool, alone: bool) -> dict[int, str]:
        """Return the answers that lose their thoughts, without them."""
        begin, end = map(re.escape, self.format.thought_words)
        last = len(said) - 1
        every = self.config.enable_thinking is False
        which = [
            index
            for index in range(1, len(said), 2)
            if (every and (index == last or not alone)) or (index < last and not history)
        ]
        return {
            index: re.sub(f"{begin}(.*?){end}", "", said[index].content, flags=re.DOTALL).lstrip("\n")
            for index in which
        }

    def thinks(self, content: str) -> bool:
        """Whether a text holds thoughts: they are written before a tool call, other text beside it is not."""
        return self.format.thought_words[1].strip() in content

    def _message(self, said: Said, media: Set[str]) -> list[Element]:
        if said.role == "function":
            before = self._quoted(said.content) if self.thinks(said.content) else ""
            return self._filled(self.format.function, before + self._called(said.calls))
        slots: Mapping[str, Slots] = {
            "user": self.format.user,
            "assistant": self.format.assistant,
            "observation": self.format.observation,
        }
        return self._filled(slots[said.role], self._content(said, media))

    def _content(self, said: Said, media: Set[str]) -> str:
        """Return the content of a message with what stands for these media in the places of their marks."""
        content = str(self._quoted(said.content))
        if self.media and said.role != "assistant":
            for each in media & self.media.marks.keys():  # of others the reader says why it does not read them
                written = self.format.media[each].replace(SLOT % each, self.media.marks[each])
                content = content.replace(self._quoted(mark_of(each)), written)
        return content

    def _with_instructions(self, instructions: str, first: Said, media: Set[str]) -> list[Element]:
        """Return the first message of a format that has no system messages: it begins with what would be one."""
        before = self._filled(self.format.system, instructions)[0] if instructions else ""
        whole = f"{before}{self._content(first, media)}"
        return self._filled(self.format.user if first.role == "user" else self.format.observation, whole)

    def _instructions(self, system: str, offered: Sequence[tools.Tool]) -> str:
        """Return the system message and the tools on offer."""
        words = self._quoted(system or self.system)
        if not offered:
            return words
        form = self.config.tool_format or self.format.tools
        quoted = [self._quoted(dict(tool)) for tool in offered]
        told = self._safely(lambda: tools.offered(form, quoted, self.day), "the tools")
        return words + (told.lstrip("\n") if self.format.behaves == "tools_stripped" and not words else told)

    def _called(self, calls: Sequence[tools.Call]) -> str:
        form = self.config.tool_format or self.format.calls
        quoted = [(name, arguments) for name, arguments in self._quoted(calls)]
        return self._safely(lambda: tools.called(form, quoted), "a tool call")

    def _quoted(self, value: Any) -> Any:
        """Return what anybody wrote with special tokens as text; other added tokens (`<think>`) are tokens, as there."""
        return self.tokenizer.quoted(value, "assistant")

    def _safely(self, write: Callable[[], str], what: str) -> str:
        try:
            return write()
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{what} cannot be written in this format: {error}") from None

    def _filled(self, slots: Slots, content: str) -> list[Element]:
        """Return slots with a content: texts and tokens."""
        found: list[Element] = []
        for slot in slots:
            if isinstance(slot, str):
                text = slot.replace(CONTENT, content, 1)
                found += [text] if text else []
            else:
                found += self._token(slot)
        return found

    def _token(self, slot: Mapping[str, Any]) -> list[Element]:
        if slot.get("role") == "eos_token":
            return list(self.eos)
        token = self.tokenizer.token_id(slot["token"]) if "token" in slot else self.tokenizer.bos_id
        return [] if token is None else [token]

"""A conversation with a model: what was said, whom it is with, and how answers are drawn."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym_core import GymError
from gym_core.files import expanded
from gym_data.chat.answer_format import AnswerFormat
from gym_data.chat.answer_parser import Delta, ToolCall
from gym_data.chat.channel_parser import parser_of
from gym_serve.contract import Engine, Request, Sampling, Usage
from gym_serve.images import check
from gym_serve.names import Asked, asked
from gym_serve.on_disk import OnDisk
from gym_serve.template_options import TemplateSettings

Message = dict[str, Any]


@dataclass
class Spent:
    """What an answer took."""

    began: float = field(default_factory=time.monotonic)
    first: float | None = None  #: seconds until the first token
    last: float = 0.0  #: seconds until the last one
    tokens: int = 0
    at_once: int = 0  #: of them, those that came with the first one
    usage: Usage | None = None
    cut: bool = False  #: whether the length ended it

    def count(self, tokens: int) -> None:
        """Take note of tokens that came now."""
        self.last = time.monotonic() - self.began
        if self.first is None and tokens:
            self.first, self.at_once = self.last, tokens
        self.tokens += tokens

    @property
    def speed(self) -> float | None:
        """Tokens a second behind those that came first; None where there are none."""
        seconds, later = self.last - (self.first or 0.0), self.tokens - self.at_once
        return later / seconds if later and seconds > 0 else None


class Session:
    """One conversation."""

    def __init__(
        self,
        engine: Engine,
        sampling: Sampling,
        system: str = "",
        tools: Sequence[Message] = (),
        told: TemplateSettings | None = None,
    ) -> None:
        """Begin with the first model that an engine serves; `told` is what chat templates are told."""
        self.engine, self.sampling, self.tools = engine, sampling, list(tools)
        self.told = told or TemplateSettings()
        self.system = system
        self.messages: list[Message] = []
        self.images: list[OnDisk] = []  #: that stand before what is said next
        self.whom = Asked(engine.models()[0].name)
        self.spent = Spent()

    def names(self) -> list[Asked]:
        """Return whom one can talk to: models, each before its tenants."""
        models = self.engine.models()
        return [
            Asked(model.name, tenant)
            for model in models
            for tenant in (None, *(self.engine.tenants(model.name) if model.tenants else ()))
        ]

    async def switch(self, name: str) -> None:
        """Go on with another model or tenant: `model`, `model@tenant`, `@tenant`, or the name of either alone."""
        known = self.names()
        wanted = asked(f"{self.whom.model}{name}" if name.startswith("@") else name)
        if wanted not in known:
            alone = [each for each in known if name in (each.tenant, each.model)]
            wanted = next((each for each in alone if each.model == self.whom.model), alone[0] if alone else None)
        if wanted is None:
            raise GymError(f"there is no `{name}`", fix=f"there are: {', '.join(map(str, known[:20]))}")
        if wanted.tenant is not None:
            await self.engine.load(wanted.model, wanted.tenant)
        self.whom = wanted

    def reset(self) -> None:
        """Forget what was said."""
        self.messages.clear()
        self.images.clear()

    def undo(self) -> str | None:
        """Take back the last thing that the user said, with what followed; return it. Its images stand before what comes next."""
        while self.messages:
            message = self.messages.pop()
            if message["role"] == "user":
                *images, text = message["content"] if isinstance(message["content"], list) else [message["content"]]
                self.images = [part["image"] for part in images]
                return str(text["text"] if images else text)
        return None

    async def show(self, path: str) -> None:
        """Put an image before what is said next. Raises GymError where there is no such file, or the model reads none."""
        model = await self.engine.described(self.whom.model, self.whom.tenant)
        image = OnDisk(str(expanded(path)), Path.cwd())
        part = [{"type": "image", "image": image}]
        check(Request(self.whom.model, messages=[{"role": "user", "content": part}]), model)
        if not Path(image.named).is_file():
            raise GymError(f"there is no image {path}")
        self.images.append(image)

    @property
    def calls(self) -> list[Message]:
        """Return calls that wait for their results."""
        answered = {message.get("tool_call_id") for message in self.messages if message["role"] == "tool"}
        last = next((each for each in reversed(self.messages) if each["role"] == "assistant"), {})
        return [call for call in last.get("tool_calls", ()) if call["id"] not in answered]

    async def say(self, text: str) -> AsyncGenerator[Delta, None]:
        """Say something, or give the result of the call that waits, and yield the answer as it comes.

        What was answered until then is kept where the reader leaves. Where it is refused, nothing was said.
        """
        waiting = self.calls
        shown: list[OnDisk] = []
        before = len(self.messages)
        if waiting:
            self.messages.append({"role": "tool", "content": text, "tool_call_id": waiting[0]["id"]})
            if len(waiting) > 1:
                return
        else:
            self.messages.append({"role": "user", "content": _content(self.images, text)})
            shown, self.images = self.images, []
        self.spent, whole = Spent(), Delta()
        try:
            async with aclosing(self._answer()) as answer:
                async for delta in answer:
                    whole += delta
                    yield delta
        except GymError:
            del self.messages[before:]
            self.images = [*shown, *self.images]
            raise
        finally:
            if len(self.messages) > before:  # an empty answer too: templates refuse two messages of the user in a row
                self.messages.append(_message(whole))

    async def _answer(self) -> AsyncGenerator[Delta, None]:
        model = await self.engine.described(self.whom.model, self.whom.tenant)
        if options := self.told.read_by(model):
            model = await self.engine.described(self.whom.model, self.whom.tenant, options)
        system = [{"role": "system", "content": self.system}] if self.system else []
        request = Request(
            self.whom.model,
            self.whom.tenant,
            owner="chat",
            messages=[*system, *self.messages],
            tools=self.tools or None,
            template_options=options,
            sampling=self.sampling,
        )
        check(request, model)
        parser = parser_of(model.answers or AnswerFormat(), self.tools)
        async with aclosing(self.engine.submit(request)) as pieces:
            async for piece in pieces:
                self.spent.count(len(piece.tokens))
                self.spent.usage = piece.usage or self.spent.usage
                self.spent.cut = piece.finish_reason == "length"
                if delta := parser.feed(piece.text, end=piece.finish_reason is not None):
                    yield delta


def _content(images: Sequence[OnDisk], text: str) -> str | list[Message]:
    """Return what is said behind some images."""
    return [*({"type": "image", "image": each} for each in images), {"type": "text", "text": text}] if images else text


def _message(answer: Delta) -> Message:
    message: Message = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [_call(call) for call in answer.calls]
    return message


def _call(call: ToolCall) -> Message:
    return {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}

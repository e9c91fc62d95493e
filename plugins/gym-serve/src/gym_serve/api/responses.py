"""`/v1/responses`: OpenAI's responses, of conversations that the client keeps. Nothing is stored here."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from secrets import token_hex
from typing import Annotated, Any, Literal

from pydantic import Field

from gym_serve.api.auth import Access
from gym_serve.api.chat_completions import ChatCompletion, job_of
from gym_serve.api.chat_schema import (
    Call,
    ChatMessage,
    Function,
    FunctionTool,
    JsonSchema,
    Name,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    Tool,
    ToolChoice,
)
from gym_serve.api.errors import told_as
from gym_serve.api.fields import Body, Count, Ignored
from gym_serve.api.generation import Job, events, replies
from gym_serve.api.response_items import Items, usage_of
from gym_serve.api.service import Service
from gym_serve.api.sse import EventStream, Line, begun
from gym_serve.sampling_bounds import Temperature, TopP
from gym_serve.template_options import Effort, TemplateOptions


class Text(Body):
    """Text of a message."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputMessage(Body):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Text]
    id: str | None = None
    status: str | None = None


class FunctionCall(Body):
    """A call of the assistant."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(max_length=256)]
    name: Name
    arguments: str
    id: str | None = None
    status: str | None = None


class FunctionCallOutput(Body):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(max_length=256)]
    output: str | list[Text]
    id: str | None = None
    status: str | None = None


class ThoughtText(Body):
    """Text of a thought."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class Thought(Body):
    """A thought of the assistant, of which its text is read, or where there is none that of its summary."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[ThoughtText] | None = None
    content: list[ThoughtText] | None = None
    encrypted_content: None = None
    status: str | None = None


class FlatTool(Body):
    """A function on offer."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatChoice(Body):
    """The function that must be called."""

    type: Literal["function"]
    name: Name


class TextFormat(Body):
    """What the text must look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    def converted(self) -> ResponseFormat:
        """Return the same in the form of chat completions."""
        if self.type != "json_schema":
            return ResponseFormat(type=self.type)
        schema = JsonSchema.model_validate({"name": self.name or "reply", "schema": self.schema_})
        return ResponseFormat(type=self.type, json_schema=schema)


class TextOptions(Body):
    """What is asked of the text."""

    format: TextFormat | None = None
    verbosity: None = None


class Reasoning(Body):
    """How much is thought before an answer. Thoughts are shown as they are, without a summary."""

    effort: Effort | None = None
    summary: None = None
    generate_summary: None = None


#: of fields, by those of OpenAI's chat
NAMES = {
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
Item = InputMessage | FunctionCall | FunctionCallOutput | Thought


class Responses(Ignored):
    """A conversation to go on with."""

    model: Annotated[str, Field(max_length=512)]
    input: str | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool | None = None
    tools: list[FlatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    truncation: Literal["disabled"] | None = None
    include: Annotated[list[Any], Field(max_length=0)] | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: TemplateOptions | None = None

    def converted(self) -> ChatCompletion:
        """Return the same in the form of chat completions."""
        given = self.input if not isinstance(self.input, str) else [InputMessage(role="user", content=self.input)]
        found = [ChatMessage(role="system", content=self.instructions)] if self.instructions else []
        for item in given:
            _append(found, item)
        choice: ToolChoice | None
        if isinstance(self.tool_choice, FlatChoice):
            choice = NamedTool(type="function", function=NamedFunction(name=self.tool_choice.name))
        else:
            choice = self.tool_choice
        functions = [FunctionTool(**tool.model_dump(exclude={"type"})) for tool in self.tools or ()]
        return ChatCompletion(
            model=self.model,
            messages=found or [ChatMessage(role="user", content="")],
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            tools=[Tool(type="function", function=each) for each in functions] or None,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=self.reasoning.effort if self.reasoning else None,
            chat_template_kwargs=self.chat_template_kwargs,
            response_format=self.text.format.converted() if self.text and self.text.format else None,
        )


def _append(found: list[ChatMessage], item: Item) -> None:
    """Add an item to a conversation: calls and thoughts belong to the answer that they stand in."""
    last = found[-1] if found and found[-1].role == "assistant" else None
    if item.type == "message" and item.role == "assistant" and last and not (last.content or last.tool_calls):
        found[-1] = last.model_copy(update={"content": _text(item.content)})  # behind its thought
    elif item.type == "message":
        found.append(ChatMessage(role=item.role, content=_text(item.content)))
    elif item.type == "reasoning":
        thought = "\n".join(part.text for part in item.content or item.summary or ())
        found.append(ChatMessage(role="assistant", reasoning_content=thought or None))
    elif item.type == "function_call_output":
        found.append(ChatMessage(role="tool", tool_call_id=item.call_id, content=_text(item.output)))
    else:
        call = Call(id=item.call_id, function=Function(name=item.name, arguments=item.arguments))
        if last:
            found.pop()
        last = last or ChatMessage(role="assistant")
        found.append(last.model_copy(update={"tool_calls": [*(last.tool_calls or ()), call]}))


def _text(content: str | list[Text]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


async def responses(service: Service, body: Responses, access: Access) -> dict[str, Any] | EventStream:
    """Answer, at once or as a stream."""
    id = f"resp_{token_hex(12)}"
    with told_as(NAMES):
        job = await job_of(service, body.converted(), access, id)
    head = _head(body, id)
    if body.stream:
        return EventStream(await begun(_events(service, job, head)), done=None)
    reply = (await replies(service, job))[0]
    items = Items()
    items.add(reply.delta)
    items.end()
    return _ended(head, items, reply.finish_reason) | {"usage": usage_of(reply.usage)}


def _head(body: Responses, id: str) -> dict[str, Any]:
    """Return what is known of a response before it is there."""
    plain = body.model_dump(by_alias=True)
    return {
        "id": id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": body.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"}} if not body.text else plain["text"],
        "tool_choice": plain["tool_choice"] or "auto",
        "tools": plain["tools"] or [],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _ended(head: dict[str, Any], items: Items, reason: str) -> dict[str, Any]:
    cut = reason == "length"
    why = {"reason": "max_output_tokens"} if cut else None
    status = "incomplete" if cut else "completed"
    return {**head, "status": status, "output": items.output(), "incomplete_details": why}


async def _events(service: Service, job: Job, head: dict[str, Any]) -> AsyncGenerator[Line, None]:
    number, items = 0, Items()

    def line(name: str, /, **data: Any) -> Line:
        nonlocal number
        number += 1
        return name, {"type": name, "sequence_number": number - 1, **data}

    async with aclosing(events(service, job)) as found:
        async for event in found:
            if not number:
                yield line("response.created", response=head)
                yield line("response.in_progress", response=head)
            for name, data in items.add(event.delta):
                yield line(name, **data)
            if event.finish_reason is not None:
                for name, data in items.end():
                    yield line(name, **data)
                usage = {"usage": usage_of(event.usage) if event.usage else None}
                ended = _ended(head, items, event.finish_reason) | usage
                yield line(f"response.{ended['status']}", response=ended)

"""`/v1/messages`: conversations in Anthropic's form."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from secrets import token_hex
from typing import Annotated, Any, Literal

from pydantic import Field

from gym_serve.answer_parser import Delta, ToolCall
from gym_serve.api.auth import Access
from gym_serve.api.chat_completions import ChatCompletion, TemplateOptions, job_of
from gym_serve.api.chat_schema import (
    Call,
    ChatMessage,
    Function,
    FunctionTool,
    Name,
    NamedFunction,
    NamedTool,
    Tool,
    ToolChoice,
)
from gym_serve.api.fields import Body, Count
from gym_serve.api.generation import Job, events, replies, total
from gym_serve.api.service import Service, asking
from gym_serve.api.sse import EventStream, Line, begun
from gym_serve.contract import Usage

REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Cached(Body):
    """A block; what it says of a cache changes nothing, as equal beginnings are found anyway."""

    cache_control: dict[str, Any] | None = None


class TextBlock(Cached):
    """Text."""

    type: Literal["text"]
    text: str
    citations: None = None


class ThinkingBlock(Cached):
    """A thought of the assistant."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(Cached):
    """A call of the assistant."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(max_length=256)]
    name: Name
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ToolResultBlock(Cached):
    """What a tool returned."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(max_length=256)]
    content: str | list[TextBlock] = ""
    is_error: bool | None = None


Block = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class InputMessage(Body):
    """A message."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class InputTool(Cached):
    """A tool on offer."""

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]


class Choice(Body):
    """Whether a tool must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: str | None = None


class Metadata(Body):
    """Of whom the request is; it changes nothing."""

    user_id: str | None = None


class Prompt(Body):
    """A conversation."""

    model: Annotated[str, Field(max_length=512)]
    messages: Annotated[list[InputMessage], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[InputTool] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None

    def converted(self, **further: Any) -> ChatCompletion:
        """Return the same in OpenAI's form."""
        found = [ChatMessage(role="system", content=_text(self.system))] if self.system else []
        for message in self.messages:
            found += _messages(message)
        choice = self.tool_choice or Choice(type="auto")
        named = NamedTool(type="function", function=NamedFunction(name=choice.name or "none"))
        choices: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none", "tool": named}
        thinks = None if self.thinking is None else self.thinking.type != "disabled"
        return ChatCompletion(
            model=self.model,
            messages=found,
            tools=[_tool(tool) for tool in self.tools] if self.tools else None,
            tool_choice=choices[choice.type] if self.tools else None,
            parallel_tool_calls=not choice.disable_parallel_tool_use,
            chat_template_kwargs=None if thinks is None else TemplateOptions(enable_thinking=thinks),
            continue_final_message=self.messages[-1].role == "assistant",
            **further,
        )


class Message(Prompt):
    """A conversation to go on with."""

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: Annotated[list[str], Field(max_length=16)] | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


def _tool(tool: InputTool) -> Tool:
    function = FunctionTool(name=tool.name, description=tool.description, parameters=tool.input_schema)
    return Tool(type="function", function=function)


def _text(blocks: str | list[TextBlock]) -> str:
    return blocks if isinstance(blocks, str) else "\n".join(block.text for block in blocks)


def _messages(message: InputMessage) -> list[ChatMessage]:
    """Return the messages that one of Anthropic's stands for: results of tools are messages of their own."""
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    found, texts, thoughts, calls = [], [], [], []
    for block in message.content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "thinking":
            thoughts.append(block.thinking)
        elif block.type == "tool_use":
            calls.append(Call(id=block.id, function=Function(name=block.name, arguments=json.dumps(block.input))))
        else:
            found.append(ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=_text(block.content)))
    if texts or calls or thoughts or not found:
        thought = "\n".join(thoughts) or None
        found.append(
            ChatMessage(
                role=message.role, content="\n".join(texts), tool_calls=calls or None, reasoning_content=thought
            )
        )
    return found


async def messages(service: Service, body: Message, access: Access) -> dict[str, Any] | EventStream:
    """Answer, at once or as a stream."""
    id = f"msg_{token_hex(12)}"
    asked = body.converted(
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
    )
    job = job_of(service, asked, access, id)
    head = {"id": id, "type": "message", "role": "assistant", "model": body.model}
    if body.stream:
        return EventStream(await begun(_events(service, job, head)), done=None)
    reply = (await replies(service, job))[0]
    return {
        **head,
        "content": _blocks(reply.delta),
        "stop_reason": REASONS[reply.finish_reason],
        "stop_sequence": None,
        "usage": _usage(reply.usage),
    }


async def count_tokens(service: Service, body: Prompt, access: Access) -> dict[str, int]:
    """Return the tokens of a prompt."""
    job = job_of(service, body.converted(), access, "")
    async with asking(service, str(job.asked)):
        return {"input_tokens": await service.engine.count(job.requests[0])}


def _blocks(answer: Delta) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.content:
        blocks.append({"type": "text", "text": answer.content})
    return blocks + [{**_used(call), "input": _input(call)} for call in answer.calls]


def _used(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def _input(call: ToolCall) -> Any:
    """Return the arguments of a call as an object; what is none is handed over as it was written."""
    try:
        found = json.loads(call.arguments)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"arguments": call.arguments}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


async def _events(service: Service, job: Job, head: dict[str, Any]) -> AsyncGenerator[Line, None]:
    """Yield the blocks of an answer as they grow. Tokens of the prompt are known with the first piece at the earliest."""
    at, kind = -1, ""

    def line(name: str, /, **data: Any) -> Line:
        return name, {"type": name, **data}

    async with aclosing(events(service, job)) as found:
        started = False
        async for event in found:
            if not started:
                started = True
                prompt = Usage(await service.engine.count(job.requests[0]), 0)
                message = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(prompt)}
                yield line("message_start", message=message)
            for block, empty, delta in _parts(event.delta):
                if kind != block["type"] or block["type"] == "tool_use":
                    if at >= 0:
                        yield line("content_block_stop", index=at)
                    at, kind = at + 1, block["type"]
                    yield line("content_block_start", index=at, content_block={**block, **empty})
                yield line("content_block_delta", index=at, delta=delta)
            if event.finish_reason is not None:
                if at >= 0:
                    yield line("content_block_stop", index=at)
                reason = {"stop_reason": REASONS[event.finish_reason], "stop_sequence": None}
                yield line("message_delta", delta=reason, usage=_usage(total([event.usage] if event.usage else [])))
    yield line("message_stop")


def _parts(delta: Delta) -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Return for each part of what was added its block, what that begins with, and what is added to it."""
    parts: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []
    if delta.reasoning:
        thought = {"type": "thinking_delta", "thinking": delta.reasoning}
        parts.append(({"type": "thinking"}, {"thinking": "", "signature": ""}, thought))
    if delta.content:
        parts.append(({"type": "text"}, {"text": ""}, {"type": "text_delta", "text": delta.content}))
    for call in delta.calls:
        written = {"type": "input_json_delta", "partial_json": json.dumps(_input(call), ensure_ascii=False)}
        parts.append((_used(call), {"input": {}}, written))
    return parts

"""`/v1/messages`: conversations in Anthropic's form."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from secrets import token_hex
from typing import Any

from gym_data.chat.answer_parser import Delta, ToolCall
from gym_serve.api.anthropic_schema import Message, Prompt
from gym_serve.api.auth import Access
from gym_serve.api.chat_completions import job_of
from gym_serve.api.errors import told_as
from gym_serve.api.generation import Job, events, replies, total
from gym_serve.api.service import Service, asking
from gym_serve.api.sse import EventStream, Line, begun
from gym_serve.contract import Usage

NAMES = {
    "stop": "stop_sequences",
    "chat_template_kwargs.enable_thinking": "thinking",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
}  #: of fields, by those of OpenAI's chat
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


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
    with told_as(NAMES):
        job = await job_of(service, asked, access, id)
    head = {"id": id, "type": "message", "role": "assistant", "model": body.model}
    if body.stream:
        return EventStream(await begun(_events(service, job, head)), done=None)
    reply = (await replies(service, job))[0]
    return {
        **head,
        "content": _blocks(reply.delta),
        **_reason(reply.finish_reason, reply.stop),
        "usage": _usage(reply.usage),
    }


async def count_tokens(service: Service, body: Prompt, access: Access) -> dict[str, int]:
    """Return the tokens of a prompt."""
    with told_as(NAMES):
        job = await job_of(service, body.converted(), access, "")
    async with asking(service, job.asked):
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


def _reason(reason: str, stop: str | None) -> dict[str, Any]:
    """Return why an answer ended, and the text that ended it."""
    stop = stop if reason == "stop" else None
    return {"stop_reason": "stop_sequence" if stop else REASONS[reason], "stop_sequence": stop}


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
                delta = _reason(event.finish_reason, event.stop)
                yield line("message_delta", delta=delta, usage=_usage(total([event.usage] if event.usage else [])))
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

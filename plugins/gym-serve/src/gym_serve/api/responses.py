"""`/v1/responses`: OpenAI's responses, of conversations that the client keeps. Nothing is stored here."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from secrets import token_hex
from typing import Any

from gym_serve.api.auth import Access
from gym_serve.api.chat_completions import job_of
from gym_serve.api.errors import told_as
from gym_serve.api.generation import Job, events, replies
from gym_serve.api.response_items import Items, usage_of
from gym_serve.api.responses_schema import Responses
from gym_serve.api.service import Service, asking
from gym_serve.api.sse import EventStream, Line, begun

#: of fields, by those of OpenAI's chat
NAMES = {
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}


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
    items.add(reply.delta, reply.content_logprobs)
    items.end()
    return _ended(head, items, reply.finish_reason) | {"usage": usage_of(reply.usage)}


async def input_tokens(service: Service, body: Responses, access: Access) -> dict[str, Any]:
    """Return the tokens of the prompt that a response would have."""
    with told_as(NAMES):
        job = await job_of(service, body.converted(), access, "")
    async with asking(service, job.asked):
        count = await service.engine.count(job.requests[0])
    return {"object": "response.input_tokens", "input_tokens": count}


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
        "top_logprobs": body.top_logprobs or 0,
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
            for name, data in items.add(event.delta, event.content_logprobs):
                yield line(name, **data)
            if event.finish_reason is not None:
                for name, data in items.end():
                    yield line(name, **data)
                usage = {"usage": usage_of(event.usage) if event.usage else None}
                ended = _ended(head, items, event.finish_reason) | usage
                yield line(f"response.{ended['status']}", response=ended)

"""`/v1/chat/completions`: OpenAI's chat."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from secrets import token_hex
from typing import Annotated, Any, Literal

from pydantic import Field

from gym_data.chat.answer_parser import Delta, ToolCall
from gym_serve.api.auth import Access
from gym_serve.api.chat_schema import (
    ChatMessage,
    ResponseFormat,
    StructuredOutputs,
    Tool,
    ToolChoice,
    behind_thought,
    call_or_text,
    grammar_of,
    tool_grammar,
)
from gym_serve.api.errors import HTTPProblem
from gym_serve.api.fields import Body, Count, SamplingBody, sampling
from gym_serve.api.generation import PLAIN, Event, Job, events, replies, total
from gym_serve.api.service import Service
from gym_serve.api.sse import EventStream, Line, begun
from gym_serve.contract import Alternative, Request, TokenLogprob, Usage
from gym_serve.images import check
from gym_serve.template_options import Effort, TemplateOptions, template_options


class StreamOptions(Body):
    """What a stream has beside the reply."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatCompletion(SamplingBody):
    """A conversation to go on with."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    chat_template_kwargs: TemplateOptions | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    modalities: list[str] | None = None
    reasoning_effort: Effort | None = None
    verbosity: Literal["medium"] | None = None
    prediction: dict[str, Any] | None = None  #: what makes some replies faster, and none another


def check_fields(body: ChatCompletion) -> None:
    """Raise HTTPProblem for fields that contradict each other, or say nothing without another one."""
    last = body.messages[-1]
    if body.modalities not in (None, ["text"]):
        raise HTTPProblem(400, "only text is made", key="modalities")
    if body.top_logprobs and not body.logprobs:
        raise HTTPProblem(400, "says nothing without `logprobs`", key="top_logprobs")
    if body.continue_final_message and (body.add_generation_prompt or last.role != "assistant"):
        raise HTTPProblem(400, "the last message is not the assistant's to go on with", key="continue_final_message")
    if body.continue_final_message and last.tool_calls:
        why = "an answer that ends with a call has no end to go on with: send its result"
        raise HTTPProblem(400, why, key="messages")
    if body.add_generation_prompt is False and not body.continue_final_message:
        raise HTTPProblem(400, "a reply begins where the assistant is to write", key="add_generation_prompt")
    if body.tool_choice not in (None, "none", "auto") and not body.tools:
        raise HTTPProblem(400, "says nothing without `tools`", key="tool_choice")


async def job_of(service: Service, body: ChatCompletion, access: Access, id: str) -> Job:
    """Return what an engine is asked for. Raises RequestError, naming the field, for what cannot be."""
    model, asked = await service.described(body.model, access)
    if "generate" not in model.tasks:
        raise HTTPProblem(400, "this model scores texts and writes none: ask `/v1/score`", key="model")
    limit, field = (body.max_completion_tokens, "max_completion_tokens")
    limit, field = (limit, field) if limit is not None else (body.max_tokens, "max_tokens")
    drawn = sampling(service, body, limit, field)
    check_fields(body)
    if body.logprobs:
        service.need("logprobs", "logprobs")
        drawn = replace(drawn, logprobs=body.top_logprobs or 0)
    going_on = body.continue_final_message or False
    tools = body.tools or []
    if tools:
        service.need("tools", "tools")
    options = template_options(model, body.chat_template_kwargs, body.reasoning_effort, service.options)
    if options:
        model = await service.told(asked, options)
    format = model.answers or PLAIN
    forced = tool_grammar(service, tools, body.tool_choice, format.calls)
    shaped = grammar_of(service, body.response_format, body.structured_outputs)
    if forced and body.structured_outputs:
        raise HTTPProblem(400, "contradicts `tool_choice`, which makes the reply a call", key="structured_outputs")
    offered = [] if body.tool_choice == "none" else tools
    if shaped and offered and format.calls and not body.structured_outputs:  # it says how an answer looks, not a call
        shaped = forced or call_or_text(service, offered, format, shaped)
    form = forced or shaped
    thinks = None if form is None or going_on else behind_thought(service, format, form)
    usual = service.options
    messages = [message.plain() for message in body.messages]
    if usual.system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": usual.system})
    request = Request(
        model=asked.model,
        tenant=asked.tenant,
        messages=messages,
        tools=[tool.plain() for tool in offered] or None,
        tool_choice=None,
        template_options=options,
        continue_final_message=going_on,
        sampling=replace(drawn, grammar=thinks or form),
        id=id,
        owner=asked.owner,
    )
    check(request, model)
    begins = format.begins_thinking and not going_on
    begins &= form is None or thinks is not None  # else it has no place for the mark that would end a thought
    return Job(
        asked,
        tuple(replace(request, index=index) for index in range(body.n or 1)),
        replace(format, begins_thinking=begins),
        single=bool(offered) and (body.parallel_tool_calls is False or forced is not None),
    )


async def chat_completions(service: Service, body: ChatCompletion, access: Access) -> dict[str, Any] | EventStream:
    """Answer, at once or as a stream."""
    head: dict[str, Any] = {"id": f"chatcmpl-{token_hex(12)}", "created": int(time.time()), "model": body.model}
    job = await job_of(service, body, access, head["id"])
    if body.stream:
        counted = bool(body.stream_options and body.stream_options.include_usage)
        return EventStream(await begun(_chunks(service, job, head, bool(body.logprobs), counted)))
    if body.stream_options is not None:
        raise HTTPProblem(400, "says nothing without `stream`", key="stream_options")
    found = await replies(service, job)
    choices = [
        {
            "index": index,
            "message": message_of(reply.delta),
            "logprobs": logprobs_of(reply.logprobs) if body.logprobs else None,
            "finish_reason": reply.finish_reason,
        }
        for index, reply in enumerate(found)
    ]
    usage = usage_of(total([reply.usage for reply in found]))
    return {**head, "object": "chat.completion", "choices": choices, "usage": usage}


async def _chunks(
    service: Service, job: Job, head: dict[str, Any], logprobs: bool, usage: bool
) -> AsyncGenerator[Line, None]:
    further: dict[str, Any] = {"usage": None} if usage else {}
    spent: dict[int, Usage] = {}
    calls = dict.fromkeys(range(len(job.requests)), 0)
    begun: set[int] = set()

    def chunk(event: Event, delta: dict[str, Any], reason: str | None = None) -> Line:
        shown = logprobs_of(event.logprobs) if logprobs and event.logprobs and not reason else None
        choice = {"index": event.index, "delta": delta, "logprobs": shown, "finish_reason": reason}
        return None, {**head, "object": "chat.completion.chunk", "choices": [choice], **further}

    async with aclosing(events(service, job)) as found:
        async for event in found:
            if event.index not in begun:
                begun.add(event.index)
                yield chunk(replace(event, logprobs=()), {"role": "assistant", "content": ""})
            delta = delta_of(event.delta, calls[event.index])
            calls[event.index] += len(event.delta.calls)
            if delta or event.logprobs:
                yield chunk(event, delta)
            if event.usage is not None:
                spent[event.index] = event.usage
            if event.finish_reason is not None:
                yield chunk(event, {}, event.finish_reason)
    if usage:
        counted = usage_of(total(list(spent.values())))
        yield None, {**head, "object": "chat.completion.chunk", "choices": [], "usage": counted}


def message_of(answer: Delta) -> dict[str, Any]:
    """Return a whole answer as a message."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [_call(call) for call in answer.calls]
        message["content"] = answer.content or None
    return message


def delta_of(answer: Delta, calls: int) -> dict[str, Any]:
    """Return what was added to an answer that has so many calls."""
    delta: dict[str, Any] = {}
    if answer.content:
        delta["content"] = answer.content
    if answer.reasoning:
        delta["reasoning_content"] = answer.reasoning
    if answer.calls:
        delta["tool_calls"] = [{"index": calls + at, **_call(call)} for at, call in enumerate(answer.calls)]
    return delta


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def logprobs_of(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return log-probabilities of tokens, each with the likeliest ones."""
    content = [{**_logprob(token), "top_logprobs": [_logprob(other) for other in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def _logprob(token: Alternative | TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": max(token.logprob or 0.0, -9999.0), "bytes": list(token.utf8)}


def usage_of(usage: Usage) -> dict[str, Any]:
    """Return the tokens of a request."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }

"""Replies as they are made: one or several streams of an engine, read as answers, within a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from gym_data.chat.answer_format import AnswerFormat
from gym_data.chat.answer_parser import Delta
from gym_data.chat.channel_parser import parser_of
from gym_serve.api.errors import ONCE, HTTPProblem
from gym_serve.api.service import Service, told
from gym_serve.contract import Request, TokenLogprob, Usage
from gym_serve.errors import Gone
from gym_serve.names import Asked

LOG = logging.getLogger(__name__)
PLAIN, NOTHING = AnswerFormat(), Usage(0, 0)


@dataclass(frozen=True)
class Job:
    """What a client asks for: one request to the engine for each reply."""

    asked: Asked
    requests: tuple[Request, ...]
    format: AnswerFormat = PLAIN
    single: bool = False  #: whether an answer ends with its first call


@dataclass(frozen=True)
class Event:
    """What was added to one of the replies; the last event of a reply has a reason."""

    index: int
    delta: Delta
    logprobs: tuple[TokenLogprob, ...] = ()
    starts: tuple[int, ...] = ()  #: of the tokens of `logprobs`: the characters before each
    finish_reason: str | None = None
    usage: Usage | None = None
    stop: str | None = None  #: the text that ended it, where one did
    content_logprobs: tuple[TokenLogprob, ...] = ()  #: of `delta.content`, where no tools are offered


@dataclass
class Reply:
    """A whole reply."""

    delta: Delta = field(default_factory=Delta)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    content_logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = "stop"
    usage: Usage = NOTHING
    stop: str | None = None


async def events(service: Service, job: Job) -> AsyncGenerator[Event, None]:
    """Yield what is added to the replies of a job, in the order in which it comes.

    Raises RequestError for what the engine refuses, and where the time is over. Closing it cancels what is under way.
    """
    began, first = time.monotonic(), True
    most = service.options.request_seconds
    queue: asyncio.Queue[Event | Exception] = asyncio.Queue(maxsize=256)
    late = asyncio.Event()

    def over() -> None:
        late.set()
        if queue.empty():
            queue.put_nowait(TimeoutError())  # which wakes whoever waits

    async def follow(index: int, request: Request) -> None:
        try:
            async with aclosing(_read(service, job, index, request)) as found:
                async for event in found:
                    await queue.put(event)
        except Exception as error:  # told to whoever reads the events
            await queue.put(error)

    with service.admitted(job.asked.user, len(job.requests)):
        tasks = [asyncio.create_task(follow(index, request)) for index, request in enumerate(job.requests)]
        timer = asyncio.get_running_loop().call_later(most, over)  # a wait with a limit makes a task for each event
        try:
            left = len(tasks)
            while left:
                event = await queue.get()
                if late.is_set():
                    why = f"the reply took longer than {most:g} s"
                    raise HTTPProblem(408, why, code="request_too_slow", headers=ONCE)
                if isinstance(event, Exception):
                    raise told(event, str(job.asked)) from event
                if first and (event.delta or event.logprobs):
                    service.metrics.first_token.observe(time.monotonic() - began)
                    first = False
                left -= event.finish_reason is not None
                yield event
        finally:
            timer.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _read(service: Service, job: Job, index: int, request: Request) -> AsyncGenerator[Event, None]:
    """Yield the events of one reply."""
    parser, called, shown = parser_of(job.format, request.tools), False, 0
    said: list[str] = []
    begun: list[int] = []  #: where each token begins
    held: list[tuple[int, TokenLogprob]] = []  #: tokens of which it is not known yet what they are part of
    async with aclosing(service.engine.submit(request)) as pieces:
        async for piece in pieces:
            if piece.finish_reason == "cancelled":
                break
            reason, usage = piece.finish_reason, piece.usage
            delta = parser.feed(piece.text, end=reason is not None)
            starts = piece.starts or (shown,) * len(piece.tokens)
            begun += starts
            shown += len(piece.text)
            said += [piece.text] * service.options.log_prompts
            called |= bool(delta.calls)
            if job.single and delta.calls:
                delta, reason = replace(delta, calls=delta.calls[:1]), "stop"
                usage = usage or Usage(await service.engine.count(request), len(begun))
            usage = usage if reason else None
            if usage is not None:
                usage = replace(usage, reasoning_tokens=sum(map(parser.thought, begun)))
                service.metrics.spent(usage)
            if delta or piece.logprobs or reason:
                told = "tool_calls" if reason and called else reason
                scored = starts if piece.logprobs else ()
                held += zip(scored, piece.logprobs, strict=True)
                spoken = tuple(each for start, each in held if delta.content and not parser.thought(start))
                held = [] if delta else held
                yield Event(index, delta, piece.logprobs, scored, told, usage, piece.stop, spoken)
            if reason:
                if service.options.log_prompts:
                    LOG.info(
                        "%s: %s -> %s", request.id, request.messages or request.prompt or request.tokens, "".join(said)
                    )
                return
    raise Gone("the engine ended a reply before it was done")


async def replies(service: Service, job: Job) -> list[Reply]:
    """Return the whole replies of a job."""
    found = [Reply() for _ in job.requests]
    async with aclosing(events(service, job)) as stream:
        async for event in stream:
            reply = found[event.index]
            reply.delta += event.delta
            reply.logprobs += event.logprobs
            reply.starts += event.starts
            reply.content_logprobs += event.content_logprobs
            reply.finish_reason = event.finish_reason or reply.finish_reason
            reply.usage = event.usage or reply.usage
            reply.stop = event.stop
    return found


def total(usages: Sequence[Usage]) -> Usage:
    """Return the tokens of a request with several replies to one prompt, whose tokens count once."""
    return Usage(
        max((usage.prompt_tokens for usage in usages), default=0),
        sum(usage.completion_tokens for usage in usages),
        max((usage.cached_tokens for usage in usages), default=0),
        sum(usage.reasoning_tokens for usage in usages),
    )

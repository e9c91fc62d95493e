"""Asking an engine for many rows at once, and writing the answers in their order."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_core import GymError
from gym_core.errors import Interrupted, RecipeError
from gym_data.chat.answer_format import AnswerFormat
from gym_data.chat.answer_parser import AnswerParser, Delta
from gym_data.chat.channel_parser import ChannelParser, parser_of
from gym_serve.answer_options import DrawingOptions
from gym_serve.api.service import Service
from gym_serve.contract import Engine, Request, Sampling, ServedModel, Usage
from gym_serve.errors import Full, Gone
from gym_serve.images import check
from gym_serve.inference.batch_rows import answered, drawn_by, refused, service_of
from gym_serve.inference.rows import Answers, Row, rows
from gym_serve.names import Asked, asked
from gym_serve.template_options import TemplateSettings


@dataclass(frozen=True)
class Asking:
    """Who is asked, and how."""

    engine: Engine
    whom: Asked
    sampling: Sampling
    told: TemplateSettings  #: what chat templates are told
    system: str = ""  #: what a conversation begins with that has no such message

    @property
    def service(self) -> Service:
        """What answers rows that are requests."""
        return service_of(self.engine, self.whom, self.sampling, self.told, self.system)

    def request(self, row: Row, model: ServedModel, service: Service) -> Request:
        """Return what a row asks of a model. Raises BadRequest for what that does not read."""
        given = dict(row.request)
        messages = given.get("messages")
        if messages and self.system and messages[0]["role"] != "system":
            given["messages"] = [{"role": "system", "content": self.system}, *messages]
        options = self.told.read_by(model) if messages else {}
        name, tenant = self.whom.model, self.whom.tenant
        request = Request(
            name,
            tenant,
            **given,
            template_options=options,
            sampling=drawn_by(service, self.sampling, row.said),
            index=row.number,
            owner="inference",
        )
        check(request, model)
        return request

    def parser(self, request: Request, model: ServedModel) -> AnswerParser | ChannelParser:
        """Return what reads the answer."""
        return parser_of((model.answers if request.messages is not None else None) or AnswerFormat(), request.tools)


@asynccontextmanager
async def opened(options: DrawingOptions) -> AsyncIterator[tuple[Engine, Asked]]:
    """Yield the engine of options that name one model, and who of it is asked; close it in the end.

    Raises RecipeError where the tenant cannot be one, and what opening a model raises.
    """
    engine = options.build()
    try:
        name = engine.models()[0].name
        whom = asked(name if options.tenant is None else f"{name}@{options.tenant}")
        if whom is None:
            raise RecipeError(f"`{options.tenant}` is no name", key="tenant", fix="name one of the adapters")
        yield engine, whom
    finally:
        await engine.close(1.0)


async def infer(asking: Asking, given: Path, answers: Answers, at_once: int, told: Callable[[int, int], None]) -> None:
    """Answer the rows that have no answer yet, at most so many at a time; `told` gets rows and tokens that are new.

    Each row draws random numbers of its own, so that answers are the same wherever it is stopped. Raises Interrupted on a signal.
    """
    model = await asking.engine.described(asking.whom.model, asking.whom.tenant)
    asking.told.check(model)
    if options := asking.told.read_by(model):
        model = await asking.engine.described(asking.whom.model, asking.whom.tenant, options)
    service = asking.service
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    numbers: list[int] = []

    def stop(number: int, frame: object) -> None:
        numbers.append(number)
        loop.call_soon_threadsafe(stopped.set)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    watch = asyncio.create_task(stopped.wait())
    source = rows(given, answers.done)
    under_way: deque[tuple[Row, asyncio.Task[dict[str, Any]]]] = deque()
    try:
        while True:
            while len(under_way) < at_once and (row := next(source, None)) is not None:
                under_way.append((row, asyncio.create_task(_answer(asking, row, model, service))))
            if not under_way:
                return
            first, task = under_way[0]
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if numbers:
                raise Interrupted(numbers[0])
            answer = task.result()
            answers.write(first, answer)
            under_way.popleft()
            told(1, _tokens(answer))
    finally:
        for _, task in under_way:
            task.cancel()
        watch.cancel()
        await asyncio.gather(watch, *(task for _, task in under_way), return_exceptions=True)
        for number, handler in before.items():
            signal.signal(number, handler)


async def _answer(asking: Asking, row: Row, model: ServedModel, service: Service) -> dict[str, Any]:
    """Return the answer to a row, or what is wrong with it."""
    if row.problem:
        return refused(row.problem, row.custom_id)
    while True:
        whole, reason, usage = Delta(), "", Usage(0, 0)
        try:
            if row.batch is not None:
                return await answered(service, row.batch, asking.sampling, row.number)
            request = asking.request(row, model, service)
            parser = asking.parser(request, model)
            async with aclosing(asking.engine.submit(request)) as pieces:
                async for piece in pieces:
                    whole += parser.feed(piece.text, end=piece.finish_reason is not None)
                    reason, usage = piece.finish_reason or reason, piece.usage or usage
        except Full as error:
            await asyncio.sleep(error.retry_after)
            continue
        except Gone:
            raise
        except GymError as error:
            return {"error": error.problems[0].why}
        return _written(whole, reason, usage)


def _tokens(answer: Mapping[str, Any]) -> int:
    """Return how many tokens an answer has."""
    told = (answer["response"] or {"body": {}})["body"] if "custom_id" in answer else answer
    usage = told.get("usage") or {}
    return int(usage.get("completion_tokens") or usage.get("output_tokens") or 0)


def _written(answer: Delta, reason: str, usage: Usage) -> dict[str, Any]:
    written: dict[str, Any] = {"response": answer.content}
    if answer.reasoning:
        written["reasoning_content"] = answer.reasoning
    if answer.calls:
        written["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in answer.calls]
        reason = "tool_calls"
    counted = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    return {**written, "finish_reason": reason, "usage": counted}

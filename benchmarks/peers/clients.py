"""Clients that ask the engine `local` at one moment: through `submit`, or as streams of `gym api` over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gym_serve.api.app import application
from gym_serve.api.connections import guarded
from gym_serve.api.options import ApiOptions
from gym_serve.api.server import listening
from gym_serve.contract import Engine, Limits, ModelSource, Request
from gym_serve.local.config import Local


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        """Start."""
        self._began = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Return those that passed, and those that this process worked."""
        return time.perf_counter() - self._began[0], time.process_time() - self._began[1]


@dataclass
class Answers:
    """What came back, in the order of the requests."""

    seconds: tuple[float, float] = (0.0, 0.0)  #: that passed, and that this process worked
    first: list[float] = field(default_factory=list)  #: seconds until something came
    tokens: list[list[int]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  #: tokens of each reply

    def speed(self, worked: bool) -> float:
        """Return the tokens/s of all together, by the seconds that passed or that this process worked."""
        return sum(self.counts) / self.seconds[worked]


@contextmanager
def engine_of(source: ModelSource, clients: int) -> Iterator[Engine]:
    """Load a model and what is beside it."""
    engine = Local(dtype="float32").build(artifacts=[source], limits=Limits(max_batch=clients, tenant_bytes=2**31))
    try:
        yield engine
    finally:
        asyncio.run(engine.close())


def submitted(engine: Engine, requests: Sequence[Request], clients: int) -> Answers:
    """Ask an engine itself; a client that has its reply asks what nobody asked yet, so that all are at work until the end."""

    async def one(request: Request, answers: Answers, at: int) -> None:
        began = time.perf_counter()
        async for piece in engine.submit(request):
            if piece.tokens and not answers.tokens[at]:
                answers.first[at] = time.perf_counter() - began
            answers.tokens[at] += piece.tokens
        answers.counts[at] = len(answers.tokens[at])

    return _at_once(requests, one, clients)


def streamed(engine: Engine, requests: Sequence[Request], clients: int) -> Answers:
    """Ask a server over the engine, each request over a connection of its own."""
    import uvicorn

    options = ApiOptions(port=0, max_concurrent=len(requests))
    opened = listening(options)
    config = uvicorn.Config(
        application(engine, options, None), http=guarded(options), ws="none", lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([opened])))
    thread.start()
    port = opened.getsockname()[1]

    async def one(request: Request, answers: Answers, at: int) -> None:
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        model = request.model if request.tenant is None else f"{request.model}@{request.tenant}"
        body = json.dumps(
            {
                "model": model, "prompt": list(request.tokens or ()), "max_tokens": request.sampling.max_tokens,
                "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
            }
        ).encode()  # fmt: skip
        head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        async for line in reader:
            if not line.startswith(b"data: {"):
                continue
            answers.first[at] = answers.first[at] or time.perf_counter() - began
            if (usage := json.loads(line[6:]).get("usage")) is not None:
                answers.counts[at] = usage["completion_tokens"]
        writer.close()
        await writer.wait_closed()

    try:
        return _at_once(requests, one, clients)
    finally:
        server.should_exit = True
        thread.join()
        opened.close()


def _at_once(
    requests: Sequence[Request], one: Callable[[Request, Answers, int], Awaitable[None]], clients: int
) -> Answers:
    count = len(requests)
    answers = Answers((0.0, 0.0), [0.0] * count, [[] for _ in range(count)], [0] * count)

    left = iter(range(count))

    async def client() -> None:
        for at in left:
            await one(requests[at], answers, at)

    async def all_of() -> None:
        await asyncio.gather(*(client() for _ in range(min(clients, count))))

    clock = Clock()
    asyncio.run(all_of())
    answers.seconds = clock.read()
    return answers

"""The engine `local`: requests become rows of the models in memory, and their tokens replies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

import torch

from gym_bitdelta.runtime.tiers import NoRoomError
from gym_core import GymError
from gym_serve.batching.grammar import WRITTEN
from gym_serve.batching.logits_processors import processors
from gym_serve.batching.prompts import prompt_tokens
from gym_serve.batching.replies import Reply
from gym_serve.contract import Limits, ModelSource, Piece, Request, ScoreInput, ServedModel
from gym_serve.errors import BadRequest, Full, Gone, RequestError, TooLong, Unknown
from gym_serve.local import pooling
from gym_serve.local.config import Local
from gym_serve.local.opening import Served, open_source
from gym_serve.local.tenants import Answering, Tenants, tenants_of
from gym_torch.generation.cache_support import way_of
from gym_torch.generation.decoding import Row
from gym_torch.generation.generator import decode_batch
from gym_torch.generation.prefix_cache import PrefixCache
from gym_torch.generation.sampling import SamplingOptions
from gym_torch.generation.scheduler import ClosedError, Job, Lane, QueueFullError, Scheduler

GRAMMARS = frozenset(f"grammar:{kind}" for kind in WRITTEN)
SUPPORTS = GRAMMARS | {
    "stream", "seed", "logprobs", "top_k", "tools", "penalties", "logit_bias",
    "tenants", "cancel", "score", "embed", "echo", "prefix_cache",
}  # fmt: skip
WORKERS = 4  #: requests that are prepared at a time: laid out, compiled, and their tenants read
AGAIN = 0.02  #: seconds until a tenant is tried again that had no room beside those in use
Found = TypeVar("Found")


class LocalEngine:
    """Serves models of this process."""

    def __init__(self, config: Local, *, artifacts: Sequence[ModelSource], limits: Limits) -> None:
        """Load what is to be served. Raises GymError where something of it cannot be."""
        if config.threads:
            torch.set_num_threads(config.threads)
        self._limits = limits
        self.served: dict[str, Served] = {}
        self._tenants: dict[str, Tenants] = {}
        for source in artifacts:
            if source.name in self.served:
                raise GymError(f"two models are called `{source.name}`", key="name")
            self.served[source.name] = served = open_source(source, limits, config.dtype)
            self._tenants[source.name] = tenants_of(served, limits)
        self._listed = [served.listed() for served in self.served.values()]
        self._prefixes = PrefixCache(limits.prefix_cache_bytes)
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._touched: set[Reply] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._preparing = ThreadPoolExecutor(WORKERS, "preparing")
        self._prepared = 0
        self._closed = False
        self._scheduler = Scheduler(limits.max_batch, limits.queue, self._flush)

    @property
    def supports(self) -> frozenset[str]:
        """Names of what it can do."""
        return SUPPORTS

    def models(self) -> Sequence[ServedModel]:
        """Return what is served."""
        return self._listed

    def tenants(self, model: str) -> Sequence[str]:
        """Return the tenants of a model."""
        self._served(model)
        return self._tenants[model].names()

    async def submit(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of a reply."""
        self._open()
        self._loop = asyncio.get_running_loop()
        if self._prepared >= self._limits.queue + self._limits.max_batch:
            raise Full(f"{self._prepared} requests are being prepared")
        self._prepared += 1
        try:
            job, reply = await self._ready(request)
        finally:
            self._prepared -= 1
        try:
            self._scheduler.add(job)
        except QueueFullError:
            reply.close()
            raise Full(f"{self._scheduler.waiting} requests wait already") from None
        except ClosedError:
            reply.close()
            raise Gone("the engine is closed") from None
        try:
            while (piece := await reply.next()) is not None:
                yield piece
        finally:
            if not reply.over:
                self._scheduler.cancel(job)

    async def count(self, request: Request) -> int:
        """Return the tokens of the prompt."""
        self._open()

        def counted() -> int:
            served = self._served(request.model)
            with ExitStack() as stack:
                tokenizer = self._tenants[request.model].open(request.tenant, stack).tokenizer
                return len(prompt_tokens(request, tokenizer, served.vocabulary))

        return await self._run(counted)

    async def score(self, model: str, inputs: Sequence[ScoreInput], tenant: str | None = None) -> list[float]:
        """Return the score of each input."""
        self._open()
        return await self._run(lambda: pooling.scores(self._asked(model, tenant, "score"), inputs))

    async def embed(
        self, model: str, texts: Sequence[str], dimensions: int | None = None, tenant: str | None = None
    ) -> list[list[float]]:
        """Return a vector of length 1 for each text."""
        self._open()

        def embedded() -> list[list[float]]:
            served, tenants = self._asked(model, tenant, "embed"), self._tenants[model]
            with ExitStack() as stack:
                answering = tenants.open(tenant, stack)
                return pooling.embeddings(served, answering, tenants, texts, dimensions)

        return await self._run(embedded)

    async def load(self, model: str, tenant: str) -> None:
        """Read a tenant ahead."""
        self._open()

        def read() -> None:
            self._served(model)
            with ExitStack() as stack:
                self._tenants[model].open(tenant, stack)

        await self._run(read)

    def statistics(self) -> Mapping[str, float]:
        """Return figures of the moment."""
        return {
            "running": self._scheduler.running,
            "waiting": self._scheduler.waiting + self._prepared,
            "prefix_cache_bytes": self._prefixes.bytes,
        }

    async def close(self, timeout: float = 30.0) -> None:
        """Finish the replies under way, and let go of everything."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._scheduler.close, timeout)
        self._preparing.shutdown(wait=False, cancel_futures=True)
        for tenants in self._tenants.values():
            tenants.close()

    def _open(self) -> None:
        if self._closed:
            raise Gone("the engine is closed")

    def _served(self, model: str) -> Served:
        if model not in self.served:
            raise Unknown(f"there is no model `{model}`")
        return self.served[model]

    def _asked(self, model: str, tenant: str | None, task: str) -> Served:
        served = self._served(model)
        if task not in served.tasks:
            raise BadRequest(f"`{model}` is no model that can {task}", key="model")
        if tenant is not None and tenant not in self._tenants[model].names():
            raise Unknown(f"there is no model `{model}@{tenant}`")
        return served

    async def _run(self, function: Callable[[], Found]) -> Found:
        """Run what takes a while beside the event loop. What is wrong with a tenant or a prompt is an error of the request."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._preparing, function)
        except (RequestError, NoRoomError):
            raise
        except GymError as error:
            raise BadRequest(error.problems[0].why, key=error.problems[0].key or "model") from error

    async def _ready(self, request: Request) -> tuple[Job, Reply]:
        """Return a request as a job; one whose tenant has no room waits while others are at work."""
        while True:
            try:
                return await self._run(lambda: self._prepare(request))
            except NoRoomError as error:
                if not self._scheduler.running:
                    raise BadRequest(error.problems[0].why, key="model") from error
                await asyncio.sleep(AGAIN)

    def _prepare(self, request: Request) -> tuple[Job, Reply]:
        served, sampling = self._asked(request.model, None, "generate"), request.sampling
        if sampling.logprobs is not None and not 0 <= sampling.logprobs <= self._limits.max_logprobs:
            raise BadRequest(f"from 0 to {self._limits.max_logprobs} alternatives are given", key="top_logprobs")
        with ExitStack() as stack:
            answering = self._tenants[request.model].open(request.tenant, stack)
            prompt = prompt_tokens(request, answering.tokenizer, served.vocabulary)
            stops = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else answering.stops)
            seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
            row = Row(
                tuple(prompt),
                self._limit(served, len(prompt), sampling.max_tokens),
                stops,
                SamplingOptions(sampling.temperature, sampling.top_p, sampling.top_k, seed),
                request.index,
                answering.key,
                None if request.owner is None else (request.model, answering.key, request.owner),
                alternatives=sampling.logprobs,
            )
            echo = answering.tokenizer.decode(prompt) if request.echo else ""
            reply = Reply(answering.tokenizer, sampling, stops, echo)
            if request.echo and sampling.logprobs is not None:
                tenants = self._tenants[request.model]
                reply.tell(prompt, pooling.prompt_scores(answering, served.context, tenants, prompt, sampling.logprobs))
            if sampling.grammar is not None:
                reply.mask = served.grammars.compile(
                    sampling.grammar, self._limits.grammar_bytes, self._limits.grammar_seconds
                )
            row.adjust = processors(sampling, row, reply.mask, served.vocabulary)
            lane = self._lane(served, answering)
            reply.close = stack.pop_all().close

        def told(row: Row) -> bool:
            self._touched.add(reply)
            return reply.told(row)

        def ended(error: BaseException | None) -> None:
            reply.ended(error)
            self._touched.add(reply)

        return Job(lane, row, told, ended), reply

    def _limit(self, served: Served, prompt: int, asked: int | None) -> int:
        """Return the most tokens of a reply. Raises TooLong where the prompt leaves none."""
        most = min(served.context - 1, self._limits.max_prompt_tokens or served.context)
        if prompt > most:
            raise TooLong(f"the prompt has {prompt} tokens, and may have {most}", key="messages")
        bounds = [served.context - prompt, self._limits.max_tokens, asked]
        limit = min(bound for bound in bounds if bound is not None)
        if limit < 1:
            raise BadRequest("at least one token must be asked for", key="max_tokens")
        return limit

    def _lane(self, served: Served, answering: Answering) -> Lane:
        """Return where rows of a model are decoded."""
        key = (served.source.name, id(answering.model))
        if key not in self._lanes:
            way = way_of(answering.model, served.context, decode_batch)
            around = self._tenants[served.source.name].around
            prefixes = self._prefixes if self._limits.prefix_cache_bytes else None
            self._lanes[key] = Lane(answering.model, way, served.context, around, prefixes)
        return self._lanes[key]

    def _flush(self) -> None:
        """Wake those whose replies grew; called in the thread that decodes."""
        touched, self._touched = self._touched, set()
        if touched and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_wake, touched)


def _wake(replies: Iterable[Reply]) -> None:
    for reply in replies:
        reply.wake()

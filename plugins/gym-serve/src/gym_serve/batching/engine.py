"""The engine over batches: requests become rows of its models, and their tokens replies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import TypeVar

from gym_core import GymError
from gym_serve.batching.batch_model import Answering, BatchModel
from gym_serve.batching.grammar import WRITTEN
from gym_serve.batching.logits_processors import processors
from gym_serve.batching.prompts import goes_on, prompt_tokens
from gym_serve.batching.replies import Reply
from gym_serve.contract import Limits, Piece, Request, ScoreInput, ServedModel
from gym_serve.errors import BadRequest, Full, Gone, RequestError, TooLong, Unknown
from gym_torch.generation.row import Row
from gym_torch.generation.sampling import SamplingOptions
from gym_torch.generation.scheduler import ClosedError, Job, QueueFullError, Scheduler

GRAMMARS = frozenset(f"grammar:{kind}" for kind in WRITTEN)
SUPPORTS = GRAMMARS | {"stream", "seed", "logprobs", "top_k", "min_p", "tools", "penalties", "logit_bias", "cancel"}
WORKERS = 4  #: requests that are prepared at a time: laid out, compiled, and their tenants read
AGAIN = 0.02  #: seconds until a tenant is tried again that had no room beside those in use
PART = 16  #: texts that are scored or embedded before those of another request get their turn
Given = TypeVar("Given")
Found = TypeVar("Found")


class CrowdedError(GymError):
    """A tenant has no room beside those in use: it is tried again while others are at work."""


class BatchEngine:
    """Serves models whose rows are decoded in one thread of this process."""

    def __init__(
        self,
        models: Iterable[BatchModel],
        limits: Limits,
        supports: frozenset[str] = frozenset(),
        figures: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Take the models, what they support beside that which is done here, and further figures of the moment.

        Raises GymError where two models have one name.
        """
        self._limits, self._supports, self._figures = limits, SUPPORTS | supports, figures
        self._models: dict[str, BatchModel] = {}
        for model in models:
            if model.source.name in self._models:
                raise GymError(f"two models are called `{model.source.name}`", key="name")
            self._models[model.source.name] = model
        self._listed = [model.listed() for model in self._models.values()]
        self._touched: set[Reply] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._preparing = ThreadPoolExecutor(WORKERS, "preparing")
        self._computing = ThreadPoolExecutor(1, "computing")  # whole texts, for which no request waits to be prepared
        self._prepared = 0
        self._holding: set[object] = set()  # one for each answer that has a tenant, or is about to
        self._closed = False
        self._scheduler = Scheduler(limits.max_batch, limits.queue, self._flush)

    @property
    def supports(self) -> frozenset[str]:
        """Names of what it can do."""
        return self._supports

    def models(self) -> Sequence[ServedModel]:
        """Return what is served."""
        return self._listed

    def tenants(self, model: str) -> Sequence[str]:
        """Return the tenants of a model."""
        return self.model(model).tenants()

    async def described(self, model: str, tenant: str | None = None) -> ServedModel:
        """Return a model with the template of a tenant."""
        asked = self.model(model)
        return asked.listed() if tenant is None else await self._run(lambda: asked.described(tenant))

    async def submit(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of a reply."""
        self._loop = asyncio.get_running_loop()
        if self._prepared >= self._limits.queue + self._limits.max_batch:
            raise Full(f"{self._prepared} requests are being prepared")
        self._prepared += 1
        try:
            job, reply = await self._run(lambda: self._prepare(request), lambda ready: ready[1].close())
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

        def counted() -> int:
            model = self.model(request.model)
            with ExitStack() as stack:
                answering = self._answering(model, request.tenant, stack)
                return len(prompt_tokens(request, answering.tokenizer, answering.vocabulary))

        return await self._run(counted)

    async def score(self, model: str, inputs: Sequence[ScoreInput], tenant: str | None = None) -> list[float]:
        """Return the score of each input."""
        asked = await self._run(lambda: self._asked(model, tenant, "score"))
        return await self._in_parts(inputs, asked.scores)

    async def embed(
        self, model: str, texts: Sequence[str], dimensions: int | None = None, tenant: str | None = None
    ) -> list[list[float]]:
        """Return a vector of length 1 for each text."""
        asked = await self._run(lambda: self._asked(model, tenant, "embed"))
        with ExitStack() as stack:
            answering = await self._run(lambda: self._answering(asked, tenant, stack), lambda found: stack.close())
            return await self._in_parts(texts, lambda part: asked.embeddings(answering, part, dimensions))

    async def load(self, model: str, tenant: str) -> None:
        """Read a tenant ahead."""

        def read() -> None:
            with ExitStack() as stack:
                self._answering(self.model(model), tenant, stack)

        await self._run(read)

    def statistics(self) -> Mapping[str, float]:
        """Return figures of the moment."""
        waiting = self._scheduler.waiting + self._prepared
        return {"running": self._scheduler.running, "waiting": waiting, **self._figures()}

    async def close(self, timeout: float = 30.0) -> None:
        """Finish the replies under way, and let go of everything."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._scheduler.close, timeout)
        for pool in (self._preparing, self._computing):
            pool.shutdown(wait=False, cancel_futures=True)
        for model in self._models.values():
            model.close()

    def model(self, name: str) -> BatchModel:
        """Return the model of a name. Raises Unknown."""
        if name not in self._models:
            raise Unknown(f"there is no model `{name}`")
        return self._models[name]

    def _asked(self, name: str, tenant: str | None, task: str) -> BatchModel:
        model = self.model(name)
        if task not in model.listed().tasks:
            raise BadRequest(f"`{name}` is no model that can {task}", key="model")
        if tenant is not None and tenant not in model.tenants():
            raise Unknown(f"there is no model `{name}@{tenant}`")
        return model

    async def _in_parts(
        self, given: Sequence[Given], computed: Callable[[Sequence[Given]], Sequence[Found]]
    ) -> list[Found]:
        """Compute some of many texts at a time: others get their turns in between, and what nobody waits for is left out."""
        found: list[Found] = []
        for at in range(0, len(given), PART):
            found += await self._run(partial(computed, given[at : at + PART]), pool=self._computing)
        return found

    async def _run(
        self,
        function: Callable[[], Found],
        unread: Callable[[Found], None] = lambda found: None,
        pool: ThreadPoolExecutor | None = None,
    ) -> Found:
        """Run what takes a while beside the event loop. What is wrong with a tenant or a prompt is an error of the request.

        What has no room for its tenant waits while others hold theirs. Where nobody waits any more, `unread` is given what was
        found.
        """
        while not self._closed:
            others = bool(self._holding)  # one that ends during a try leaves room for the next
            running = (pool or self._preparing).submit(function)
            try:
                return await asyncio.wrap_future(running)
            except asyncio.CancelledError:
                running.add_done_callback(lambda done: _given_up(done, unread))
                raise
            except RequestError:
                raise
            except CrowdedError as error:
                if not (others or self._holding):
                    raise _of_request(error) from error
                await asyncio.sleep(AGAIN)
            except GymError as error:
                raise _of_request(error) from error
        raise Gone("the engine is closed")

    def _answering(self, model: BatchModel, tenant: str | None, stack: ExitStack) -> Answering:
        """Return what answers for a tenant until `stack` is closed."""
        hold = object()
        self._holding.add(hold)
        stack.callback(self._holding.discard, hold)
        answering: Answering = model.open(tenant, stack)
        return answering

    def _prepare(self, request: Request) -> tuple[Job, Reply]:
        model, sampling = self._asked(request.model, None, "generate"), request.sampling
        if sampling.logprobs is not None and not 0 <= sampling.logprobs <= self._limits.max_logprobs:
            raise BadRequest(f"from 0 to {self._limits.max_logprobs} alternatives are given", key="top_logprobs")
        if request.echo and "echo" not in self._supports:
            raise BadRequest("prompts are not echoed by this engine", key="echo")
        with ExitStack() as stack:
            answering = self._answering(model, request.tenant, stack)
            prompt = prompt_tokens(request, answering.tokenizer, answering.vocabulary)
            going_on = sampling.ignore_eos and sampling.grammar is None  # a grammar has such a token at its end alone
            stops = frozenset(sampling.stop_token_ids) | (frozenset() if going_on else frozenset(answering.stops))
            seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
            row = Row(
                tuple(prompt),
                self._limit(answering.context, len(prompt), sampling.max_tokens, _field(request)),
                stops,
                SamplingOptions(sampling.temperature, sampling.top_p, sampling.top_k, seed),
                request.index,
                answering.key,
                None if request.owner is None else (request.model, answering.key, request.owner),
                alternatives=sampling.logprobs,
            )
            echo = answering.tokenizer.decode(prompt) if request.echo else ""
            reply = Reply(answering.tokenizer, sampling, stops, echo, prompt if goes_on(request) else ())
            if request.echo and sampling.logprobs is not None:
                reply.tell(prompt, model.prompt_scores(answering, prompt, sampling.logprobs))
            if sampling.grammar is not None:
                reply.mask = answering.grammars.compile(
                    sampling.grammar, self._limits.grammar_bytes, self._limits.grammar_seconds
                )
            row.adjust = processors(sampling, row, reply.mask, answering.vocabulary)
            lane = model.lane(answering)
            reply.close = stack.pop_all().close

        def told(row: Row) -> bool:
            self._touched.add(reply)
            return reply.told(row)

        def ended(error: BaseException | None) -> None:
            reply.ended(error)
            self._touched.add(reply)

        return Job(lane, row, told, ended), reply

    def _limit(self, context: int, prompt: int, asked: int | None, key: str) -> int:
        """Return the most tokens of a reply. Raises TooLong where the prompt leaves none."""
        most = min(context - 1, self._limits.max_prompt_tokens or context)
        if prompt > most:
            raise TooLong(f"the prompt is too long: it has {prompt} tokens, and may have {most}", key=key)
        bounds = [context - prompt, self._limits.max_tokens, asked]
        limit = min(bound for bound in bounds if bound is not None)
        if limit < 1:
            raise BadRequest("at least one token must be asked for", key="max_tokens")
        return limit

    def _flush(self) -> None:
        """Wake those whose replies grew; called in the thread that decodes."""
        touched, self._touched = self._touched, set()
        if touched and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                self._loop.call_soon_threadsafe(_wake, touched)


def _field(request: Request) -> str:
    """Return the field that holds the prompt."""
    return "messages" if request.messages is not None else "prompt"


def _of_request(error: GymError) -> BadRequest:
    return BadRequest(error.problems[0].why, key=error.problems[0].key or "model")


def _given_up(done: Future[Found], unread: Callable[[Found], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        unread(done.result())


def _wake(replies: Iterable[Reply]) -> None:
    for reply in replies:
        reply.wake()

"""The engine over batches: requests become rows of its models, and their tokens replies."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from gym_core import GymError
from gym_serve.batching import bounds
from gym_serve.batching.aside import Aside
from gym_serve.batching.batch_model import Answering, BatchModel
from gym_serve.batching.grammar import WRITTEN
from gym_serve.batching.logits_processors import bad_words, processors
from gym_serve.batching.prompts import Prompt, goes_on, prompt_of, tokenized_by
from gym_serve.batching.replies import Reply
from gym_serve.contract import Limits, Piece, Request, ScoreInput, ServedModel, Text, Tokenized, Usage
from gym_serve.errors import BadRequest, Full, Gone, Unknown
from gym_serve.names import Asked
from gym_torch.generation.row import Row
from gym_torch.generation.sampling import SamplingOptions
from gym_torch.generation.scheduler import ClosedError, Job, QueueFullError, Scheduler
from gym_torch.generation.turns import has_room

GRAMMARS = frozenset(f"grammar:{kind}" for kind in WRITTEN)
SAMPLING = "seed logprobs top_k min_p penalties logit_bias bad_words min_tokens include_stop_str_in_output"
SUPPORTS = GRAMMARS.union(SAMPLING.split(), ("stream", "tools", "cancel", "tokenize", "suffix"))


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
        self._aside = Aside()
        self._prepared: Counter[str] = Counter()
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

    async def described(
        self,
        model: str,
        tenant: str | None = None,
        template_options: Mapping[str, Any] | None = None,
        owner: str | None = None,
    ) -> ServedModel:
        """Return a model with the template of a tenant, and how answers are written with some options."""
        asked, options = self.model(model), template_options or {}
        plain = tenant is None and not options
        if plain:
            return asked.listed()
        return await self._aside.run(lambda: asked.described(tenant, options), user=Asked(model, tenant, owner).user)

    async def submit(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of a reply."""
        self._loop = asyncio.get_running_loop()
        if request.echo and request.sampling.max_tokens == 0:
            for told in await self._aside.run(lambda: self._echoed(request), user=request.user):
                yield told
            return
        if not has_room(
            self._prepared, wanted := Counter({request.user: 1}), self._limits.queue + self._limits.max_batch
        ):
            raise Full(f"{self._prepared.total()} requests are being prepared")
        self._prepared += wanted
        try:
            job, reply = await self._aside.run(
                lambda: self._prepare(request), lambda ready: ready[1].close(), user=request.user
            )
        finally:
            self._prepared -= wanted
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
                return len(self._prompt(request, answering).tokens)

        return await self._aside.run(counted, user=request.user)

    async def tokenize(self, request: Request) -> Tokenized:
        """Return the prompt as tokens."""

        def tokenized() -> Tokenized:
            with ExitStack() as stack:
                words = self._answering(self.model(request.model), request.tenant, stack).tokenizer
                return tokenized_by(words, request, self._limits.max_images)

        return await self._aside.run(tokenized, user=request.user)

    async def detokenize(
        self, model: str, tokens: Sequence[int], tenant: str | None = None, owner: str | None = None
    ) -> str:
        """Return the text of tokens."""

        def text() -> str:
            with ExitStack() as stack:
                answering = self._answering(self.model(model), tenant, stack)
                bounds.check_tokens(tokens, answering.vocabulary, "tokens")
                return answering.tokenizer.decode(tokens)

        return await self._aside.run(text, user=Asked(model, tenant, owner).user)

    async def score(
        self, model: str, inputs: Sequence[ScoreInput], tenant: str | None = None, owner: str | None = None
    ) -> list[float]:
        """Return the score of each input."""
        user = Asked(model, tenant, owner).user
        asked = await self._aside.run(lambda: self._asked(model, tenant, "score"), user=user)
        return await self._aside.in_parts(inputs, asked.scores, user)

    async def embed(
        self,
        model: str,
        texts: Sequence[Text],
        dimensions: int | None = None,
        tenant: str | None = None,
        owner: str | None = None,
    ) -> list[list[float]]:
        """Return a vector of length 1 for each text."""
        user = Asked(model, tenant, owner).user
        asked = await self._aside.run(lambda: self._asked(model, tenant, "embed"), user=user)
        with ExitStack() as stack:
            answering = await self._aside.run(
                lambda: self._answering(asked, tenant, stack), lambda found: stack.close(), user=user
            )
            return await self._aside.in_parts(texts, lambda part: asked.embeddings(answering, part, dimensions), user)

    async def load(self, model: str, tenant: str) -> None:
        """Read a tenant ahead."""

        def read() -> None:
            with ExitStack() as stack:
                self._answering(self.model(model), tenant, stack)

        await self._aside.run(read)

    def statistics(self) -> Mapping[str, float]:
        """Return figures of the moment."""
        waiting = self._scheduler.waiting + self._prepared.total()
        return {"running": self._scheduler.running, "waiting": waiting, **self._figures()}

    async def close(self, timeout: float = 30.0) -> None:
        """Finish the replies under way, and let go of everything."""
        if self._closed:
            return
        self._closed = True
        self._aside.refuse()
        await asyncio.to_thread(self._scheduler.close, timeout)
        self._aside.close()
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

    def _answering(self, model: BatchModel, tenant: str | None, stack: ExitStack) -> Answering:
        """Return what answers for a tenant until `stack` is closed."""
        with ExitStack() as own:  # what a try leaves is given back before the next one
            own.enter_context(self._aside.holding())
            answering: Answering = model.open(tenant, own)
            stack.callback(own.pop_all().close)
        return answering

    def _prompt(self, request: Request, answering: Answering) -> Prompt:
        return prompt_of(request, answering.tokenizer, answering.vocabulary, self._limits.max_images)

    def _begin(self, request: Request, stack: ExitStack) -> tuple[BatchModel, Answering, Prompt, Reply]:
        """Return what answers a request, its prompt, and a reply that has told of the prompt what is asked."""
        model, sampling = self._asked(request.model, None, "generate"), request.sampling
        if request.echo and "echo" not in self._supports:
            raise BadRequest("prompts are not echoed by this engine", key="echo")
        answering = self._answering(model, request.tenant, stack)
        bounds.check(sampling, self._limits, answering.vocabulary)
        given = self._prompt(request, answering)
        prompt = given.tokens
        bounds.check_prompt(self._limits, answering.context, len(prompt), request)
        given.check(request)
        echo = answering.tokenizer.decode(prompt) if request.echo else ""
        stops = bounds.ends(request, answering.stops, answering.tokenizer)
        reply = Reply(answering.tokenizer, sampling, stops, echo, prompt if goes_on(request) else ())
        if request.echo and sampling.logprobs is not None:
            reply.tell(prompt, model.prompt_scores(answering, prompt, sampling.logprobs))
        return model, answering, given, reply

    def _echoed(self, request: Request) -> list[Piece]:
        """Return the prompt alone."""
        with ExitStack() as stack:
            *_, prompt, reply = self._begin(request, stack)
            return [*reply.echoed(), Piece(finish_reason="length", usage=Usage(len(prompt.tokens), 0))]

    def _prepare(self, request: Request) -> tuple[Job, Reply]:
        sampling = request.sampling
        with ExitStack() as stack:
            model, answering, prompt, reply = self._begin(request, stack)
            seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
            row = Row(
                tuple(prompt.tokens),
                bounds.limit(self._limits, answering.context, len(prompt.tokens), request),
                bounds.ends(request, answering.stops, answering.tokenizer),
                SamplingOptions(sampling.temperature, sampling.top_p, sampling.top_k, seed),
                request.index,
                answering.key,
                None if request.owner is None else (request.model, answering.key, request.owner),
                alternatives=sampling.logprobs,
                inputs=prompt.inputs(answering.tokenizer),
            )
            if sampling.grammar is not None:
                reply.mask = answering.grammars.compile(
                    sampling.grammar, self._limits.grammar_bytes, self._limits.grammar_seconds
                )
            words = bad_words(sampling.bad_words, answering.tokenizer.encode)
            row.adjust = processors(sampling, row, reply.mask, words)
            lane = model.lane(answering, bool(prompt.images))
            reply.close = stack.pop_all().close

        def told(row: Row) -> bool:
            self._touched.add(reply)
            return reply.told(row)

        def ended(error: BaseException | None) -> None:
            reply.ended(error)
            self._touched.add(reply)

        return Job(lane, row, told, ended, request.user), reply

    def _flush(self) -> None:
        """Wake those whose replies grew; called in the thread that decodes."""
        touched, self._touched = self._touched, set()
        if touched and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                self._loop.call_soon_threadsafe(_wake, touched)


def _wake(replies: Iterable[Reply]) -> None:
    for reply in replies:
        reply.wake()

"""The engine `vllm`: prompts are laid out here, as for any engine; a vLLM server writes on, token by token.

The server is asked with token ids and tells token ids, so that templates, stop strings and texts are those of the other engines.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gym_core import GymError
from gym_rewards.http_client import HttpClient, NoReply
from gym_serve.batching import bounds
from gym_serve.batching.aside import TurnPool
from gym_serve.batching.prompts import goes_on, prompt_of, tokenized_by
from gym_serve.batching.replies import Reply
from gym_serve.contract import Limits, ModelSource, Piece, Request, ScoreInput, ServedModel, Text, Tokenized
from gym_serve.errors import BadRequest, Full, Gone, RequestError, Unknown
from gym_torch.generation.row import Row
from gym_torch.generation.sampling import Scores
from gym_torch.generation.turns import has_room
from gym_vllm.client import Client
from gym_vllm.launch import Server
from gym_vllm.serving.command import server_of
from gym_vllm.serving.config import ServedByVLLM
from gym_vllm.serving.model import open_model
from gym_vllm.serving.wire import GRAMMARS, body_of, events, why_of

SUPPORTS = frozenset({f"grammar:{kind}" for kind in GRAMMARS}) | {
    "stream", "seed", "logprobs", "top_k", "min_p", "tools", "penalties", "logit_bias", "tenants", "cancel", "prefix_cache",
    "min_tokens", "include_stop_str_in_output", "tokenize", "suffix",
}  # fmt: skip
LARGEST = 2**28  #: bytes of a reply
STEP = 0.02  #: seconds between two looks at replies that end


@dataclass(eq=False)
class Work:
    """A reply that is asked for."""

    row: Row
    reply: Reply
    body: Mapping[str, Any]
    user: str
    wake: Any  #: called without arguments when the reply grew
    cancelled: bool = False


class VLLMEngine:
    """Asks one server, with a thread for each reply."""

    def __init__(self, config: ServedByVLLM, *, artifacts: Sequence[ModelSource], limits: Limits) -> None:
        """Reach or start the server. Raises GymError where it does not serve this model."""
        if len(artifacts) != 1:
            raise GymError(
                "a vLLM server has one model", key="models", fix="name one, and its adapters with `adapters.NAME`"
            )
        self._limits = limits
        self._model = open_model(artifacts[0], limits)
        self._listed = self._model.listed()
        self._server: Server | None = None
        url, token = (config.url, _secret(config.token)) if config.url else self._start(config)
        self._http = HttpClient(url.rstrip("/"), token, config.timeout, 0, 0.0, (), LARGEST)
        try:
            self._reach(Client(url, token, 30.0))
        except GymError:
            self._stop()
            raise
        self._work: set[Work] = set()
        self._places = limits.max_batch * config.replicas  # each copy has as many
        self._asking = TurnPool(self._places, "asking")
        self._turn = threading.Lock()
        self._closed = False

    @property
    def supports(self) -> frozenset[str]:
        """Names of what it can do."""
        return SUPPORTS

    def models(self) -> Sequence[ServedModel]:
        """Return what is served."""
        return [self._listed]

    def tenants(self, model: str) -> Sequence[str]:
        """Return the names of the adapters."""
        self._known(model, None)
        return sorted(self._model.source.adapters)

    async def described(
        self,
        model: str,
        tenant: str | None = None,
        template_options: Mapping[str, Any] | None = None,
        owner: str | None = None,
    ) -> ServedModel:
        """Return the model with the template of an adapter, and how answers are written with some options."""
        self._known(model, tenant)
        plain = tenant is None and not template_options
        return self._listed if plain else await asyncio.to_thread(self._model.listed, tenant, template_options)

    async def submit(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of a reply."""
        self._open()
        held = Counter(work.user for work in list(self._work))
        if not has_room(held, Counter({request.user: 1}), self._places + self._limits.queue):
            raise Full(f"{len(self._work)} requests wait already")
        loop = asyncio.get_running_loop()
        row, reply, body = await asyncio.to_thread(self._prepared, request)
        work = Work(row, reply, body, request.user, lambda: loop.call_soon_threadsafe(reply.wake))
        with self._turn:
            self._open()
            self._work.add(work)
            self._asking.submit(work.user, partial(self._follow, work))
        try:
            while (piece := await reply.next()) is not None:
                yield piece
        finally:
            work.cancelled = True

    async def count(self, request: Request) -> int:
        """Return the tokens of the prompt."""
        self._known(request.model, request.tenant)
        words = self._model.words[request.tenant]
        return len((await asyncio.to_thread(prompt_of, request, words, self._model.vocabulary)).tokens)

    async def tokenize(self, request: Request) -> Tokenized:
        """Return the prompt as tokens."""
        self._known(request.model, request.tenant)
        return await asyncio.to_thread(tokenized_by, self._model.words[request.tenant], request)

    async def detokenize(
        self, model: str, tokens: Sequence[int], tenant: str | None = None, owner: str | None = None
    ) -> str:
        """Return the text of tokens."""
        self._known(model, tenant)
        bounds.check_tokens(tokens, self._model.vocabulary, "tokens")
        return await asyncio.to_thread(self._model.words[tenant].decode, tokens)

    async def score(
        self, model: str, inputs: Sequence[ScoreInput], tenant: str | None = None, owner: str | None = None
    ) -> list[float]:
        """Raise BadRequest."""
        self._known(model, tenant)
        raise BadRequest(f"`{model}` is no model that can score", key="model")

    async def embed(
        self,
        model: str,
        texts: Sequence[Text],
        dimensions: int | None = None,
        tenant: str | None = None,
        owner: str | None = None,
    ) -> list[list[float]]:
        """Raise BadRequest."""
        self._known(model, tenant)
        raise BadRequest(f"`{model}` is no model that can embed", key="model")

    async def load(self, model: str, tenant: str) -> None:
        """Do nothing: the server has the adapters."""
        self._known(model, tenant)

    def statistics(self) -> Mapping[str, float]:
        """Return figures of the moment."""
        running = min(len(self._work), self._places)
        return {"running": running, "waiting": len(self._work) - running}

    async def close(self, timeout: float = 30.0) -> None:
        """Finish the replies under way, and end a server that was started here."""
        with self._turn:
            self._closed = True
        until = asyncio.get_running_loop().time() + timeout
        while self._work and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(STEP)
        for work in list(self._work):
            work.cancelled = True
        await asyncio.to_thread(self._stop)
        self._asking.close()

    def _open(self) -> None:
        if self._closed:
            raise Gone("the engine is closed")

    def _known(self, model: str, tenant: str | None) -> None:
        self._open()
        if model != self._model.source.name or (tenant is not None and tenant not in self._model.source.adapters):
            raise Unknown(f"there is no model `{model}`")

    def _prepared(self, request: Request) -> tuple[Row, Reply, Mapping[str, Any]]:
        """Return a request as a row that will grow, who reads it, and what the server is asked."""
        self._known(request.model, request.tenant)
        model, sampling = self._model, request.sampling
        if request.echo:
            raise BadRequest("prompts are not echoed by this engine", key="echo")
        bounds.check(sampling, self._limits, model.vocabulary)
        if sampling.bad_words:
            raise BadRequest("words are not kept out by this engine", key="bad_words")
        if sampling.min_tokens and sampling.grammar is not None:
            # a server draws nothing where a grammar has but its end
            raise BadRequest("this engine has no least number of tokens beside a grammar", key="min_tokens")
        if sampling.grammar is not None and len(sampling.grammar.text.encode()) > self._limits.grammar_bytes:
            raise BadRequest(f"a grammar may have {self._limits.grammar_bytes} bytes", key="response_format")
        words = model.words[request.tenant]
        prompt = prompt_of(request, words, model.vocabulary).tokens
        bounds.check_prompt(self._limits, model.context, len(prompt), request)
        limit = bounds.limit(self._limits, model.context, len(prompt), request)
        stops = bounds.ends(request, model.stops(request.tenant), words)
        row = Row(tuple(prompt), limit, stops, alternatives=sampling.logprobs)
        reply = Reply(words, sampling, stops, "", prompt if goes_on(request) else ())
        seed = secrets.randbits(62) if sampling.seed is None else sampling.seed
        return row, reply, body_of(model.name(request.tenant), request, row, seed)

    def _follow(self, work: Work) -> None:
        """Ask the server, and tell the reply of each token."""
        error: BaseException | None = None
        try:
            if not work.cancelled:
                with self._http.opened("POST", "/v1/completions", json.dumps(work.body)) as response:
                    if response.status != 200:
                        raise why_of(response.status, response.read(LARGEST))
                    for token, log_prob, top, ended in events(response):
                        if work.cancelled or (token is not None and not self._told(work, token, log_prob, top)):
                            break
                        work.row.completion.finished |= ended
                    else:  # neither the reply nor its reader ended it
                        if not work.row.completion.finished:
                            raise RequestError("the vLLM server broke off before the reply was done")
        except NoReply as caught:
            error = RequestError(f"the vLLM server does not answer: {caught}")
        except Exception as caught:
            error = caught
        with self._turn:
            self._work.discard(work)
        work.reply.ended(error)
        work.wake()

    def _told(self, work: Work, token: int, log_prob: float, top: list[tuple[int, float]]) -> bool:
        row = work.row
        if not 0 <= token < self._model.vocabulary:
            raise RequestError(f"the vLLM server wrote {token}, which is no token of this model")
        if row.alternatives is not None:
            row.scores.append(Scores(log_prob, top[: row.alternatives]))
        going = row.took(token, log_prob)
        going &= work.reply.told(row)
        work.wake()
        return going

    def _start(self, config: ServedByVLLM) -> tuple[str, str]:
        """Start a server, which ends with this process, however that ends."""
        self._server = server_of(config, self._model, self._limits)
        return self._server.start()

    def _reach(self, client: Client) -> None:
        """Raise GymError unless the server knows the model and its adapters."""
        try:
            there = {each.get("id") for each in client.get("/v1/models", "data")}
        except GymError as error:
            why = error.problems[0].why
            raise GymError(why, key="engine.url", fix="see that it runs and what it logs, and name its key") from error
        wanted = {self._model.name(name) for name in self._model.adapters} or {self._model.source.name}
        if missing := sorted(wanted - there):
            raise GymError(
                f"the vLLM server has no model `{missing[0]}`",
                key="engine.url",
                fix=f"start it with --served-model-name {self._model.source.name}, and adapters as --lora-modules NAME=PATH",
            )

    def _stop(self) -> None:
        if self._server is not None:
            self._server.stop()


def _secret(variable: str) -> str:
    """Return the value of an environment variable, nothing for no name."""
    if variable and not os.environ.get(variable):
        raise GymError(f"the environment variable {variable} is not set", key="engine.token", fix=f"export {variable}")
    return os.environ[variable] if variable else ""

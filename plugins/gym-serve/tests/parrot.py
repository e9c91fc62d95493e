"""An engine of a stranger, written on the contract alone: it repeats what was said, word by word, and knows a few tricks.

`call get_weather Paris` writes a tool call, `think about it` a thought; `slowly` takes a while. Sampling shuffles the words.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import ClassVar

from gym_data.chat.answer_format import AnswerFormat
from gym_data.chat.json_calls import CallFormat
from gym_serve import (
    BadRequest,
    Engine,
    Full,
    Gone,
    Limits,
    ModelSource,
    Piece,
    Request,
    ServedModel,
    Server,
    TokenLogprob,
    TooLong,
    Unknown,
    Usage,
)
from gym_serve.contract import Alternative, ScoreInput

FORMAT = AnswerFormat(CallFormat("<tool_call>\n", "\n</tool_call>"), "<think>", "</think>")
TENANTS = ("alice", "bob")
CONTEXT = 4096


class Parrot(Server):
    """Repeats what was said."""

    target: ClassVar[str] = "parrot:ParrotEngine"
    pause: float = 0.0
    """Seconds between two words."""


class ParrotEngine(Engine):
    """The engine."""

    def __init__(self, config: Parrot, artifacts: Sequence[ModelSource], limits: Limits) -> None:
        self.config, self.limits = config, limits
        self.names = [source.name for source in artifacts]
        self.running = self.cancelled = self.finished = 0
        self.closed = False
        self.seen: list[Request] = []

    @property
    def supports(self) -> frozenset[str]:
        return frozenset({"stream", "seed", "logprobs", "tools", "tenants", "cancel", "score", "embed"})

    def models(self) -> Sequence[ServedModel]:
        tasks = frozenset({"generate", "score", "embed"})
        return [
            ServedModel(
                name, "model", tasks, 1_700_000_000, CONTEXT, True, "a" * 64, frozenset({"enable_thinking"}), FORMAT
            )
            for name in self.names
        ]

    def tenants(self, model: str) -> Sequence[str]:
        return TENANTS

    async def submit(self, request: Request) -> AsyncGenerator[Piece, None]:
        if self.closed:
            raise Gone("closed")
        if request.model not in self.names or request.tenant not in (None, *TENANTS):
            raise Unknown("no such thing")
        if self.running >= self.limits.queue:
            raise Full("too many", 0.1)
        prompt = words(said(request))
        if len(prompt) > CONTEXT:
            raise TooLong(f"the prompt is too long: {len(prompt)} tokens, and {CONTEXT} are taken", key="messages")
        if "fail" in prompt:
            raise BadRequest("this cannot be said", key="messages")
        self.seen.append(request)
        self.running += 1
        finished = False
        try:
            async for piece in self._made(request, prompt):
                finished = piece.finish_reason is not None
                yield piece
        finally:
            self.running -= 1
            self.finished += finished
            self.cancelled += not finished

    async def _made(self, request: Request, prompt: list[str]) -> AsyncGenerator[Piece, None]:
        sampling = request.sampling
        most = min(sampling.max_tokens or CONTEXT, CONTEXT - len(prompt))
        tokens, text, reason, stopped = 0, "", "stop", None
        slow = 0.2 if "slowly" in prompt else self.config.pause
        for word in answer(request, prompt):
            if tokens == most:
                reason = "length"
                break
            await asyncio.sleep(slow)
            if "break" in prompt and tokens == 2:
                raise RuntimeError(f"it broke on {prompt}")
            tokens += 1
            whole = text + word
            found = [at for stop in sampling.stop if (at := whole.find(stop)) >= 0]
            shown = whole[: min(found)][len(text) :] if found else word
            text = whole if sampling.stop else ""
            yield Piece(
                shown, (number(word),), (chance(word, sampling.logprobs),) if sampling.logprobs is not None else ()
            )
            if found:
                stopped = min((whole.find(stop), stop) for stop in sampling.stop if stop in whole)[1]
                break
        yield Piece(finish_reason=reason, usage=Usage(len(prompt), tokens, len(prompt) // 2), stop=stopped)

    async def count(self, request: Request) -> int:
        return len(words(said(request)))

    async def score(
        self, model: str, inputs: Sequence[ScoreInput], tenant: str | None = None, owner: str | None = None
    ) -> list[float]:
        return [float(sum(len(part) for part in each) if isinstance(each, tuple) else len(each)) for each in inputs]

    async def embed(
        self,
        model: str,
        texts: Sequence[str | Sequence[int]],
        dimensions: int | None = None,
        tenant: str | None = None,
        owner: str | None = None,
    ) -> list[list[float]]:
        draws = [random.Random(str(text)) for text in texts]
        vectors = [[draw.gauss(0, 1) for _ in range(dimensions or 8)] for draw in draws]
        return [[value / sum(each * each for each in vector) ** 0.5 for value in vector] for vector in vectors]

    async def load(self, model: str, tenant: str) -> None:
        if tenant not in TENANTS:
            raise Unknown("no such thing")

    def statistics(self) -> Mapping[str, float]:
        return {"running": self.running, "waiting": 0}

    async def close(self, timeout: float = 30.0) -> None:
        self.closed = True


def said(request: Request) -> str:
    """Return the text that is repeated: the last message, or the prompt."""
    if request.messages is not None:
        return str(request.messages[-1]["content"])
    return request.prompt or " ".join(map(str, request.tokens or ()))


def words(text: str) -> list[str]:
    """Return the tokens of a text."""
    return re.findall(r"\s*\S+", text)


def answer(request: Request, prompt: list[str]) -> list[str]:
    """Return the words of the reply."""
    plain = [word.strip() for word in prompt]
    who = [f"{request.tenant}:"] if request.tenant else []
    if plain[:1] == ["call"] and request.tools:
        calls = [{"name": plain[1], "arguments": {"city": city}} for city in plain[2:]]
        return words(" ".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls))
    if plain[:1] == ["think"]:
        return [*words("<think>\nwell then\n</think>\n\n"), *words(" ".join(plain[1:]))]
    shown = plain[:]
    if request.sampling.temperature:
        random.Random(f"{request.sampling.seed} {request.index}").shuffle(shown)
    return words(" ".join([*who, *shown])) * (400 if "endless" in plain else 1)


def number(word: str) -> int:
    """Return the id of a word."""
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:3], "big")


def chance(word: str, others: int) -> TokenLogprob:
    """Return how likely a word was; two of three alternatives have one text, as parts of characters do."""
    texts = [word + "'" * (at % 2) for at in range(others)]
    top = tuple(Alternative(number(word) + at, text, -0.1 - at, text.encode()) for at, text in enumerate(texts))
    return TokenLogprob(number(word), word, -0.1, word.encode(), top)

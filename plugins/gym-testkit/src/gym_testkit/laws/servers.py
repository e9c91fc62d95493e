"""Laws of engines that serve, asked with the tiny model: a reply is a function of its request, whatever is asked beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import pytest

from gym_serve.contract import Engine, Limits, ModelSource, Piece, Request, Sampling
from gym_serve.errors import Gone, RequestError, Unknown
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

laws = laws_of("servers", "server")

NAME, LONGEST, LONG = "tiny", 12, 200
GREEDY = Sampling(max_tokens=LONGEST, temperature=0.0, ignore_eos=True)
PROMPTS = ("3 + 4", "reverse abc", "the", "9 + 9 + 9 + 9 + 9 + 9")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Reply:
    """A whole reply."""

    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """What the pieces say together."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def tokens(self) -> list[int]:
        """What was decoded."""
        return [token for piece in self.pieces for token in piece.tokens]


async def ask(engine: Engine, request: Request) -> Reply:
    """Return a whole reply that holds to what every engine promises of its pieces."""
    pieces = tuple([piece async for piece in engine.submit(request)])
    *before, last = pieces
    assert last.finish_reason is not None and last.usage is not None, "the last piece has no reason or no usage"
    assert all(piece.finish_reason is None for piece in before), "there is a piece behind the last one"
    reply = Reply(pieces)
    assert last.usage.completion_tokens == len(reply.tokens), "the usage counts other tokens than there are"
    return reply


def _with(brought: Brought, bench: Bench, use: Callable[[Engine], Awaitable[Found]], **limits: Any) -> Found:
    """Return what a use of an engine over the tiny model gives; the engine is closed behind it."""
    engine = cast(
        Engine, brought.sample().build(artifacts=[ModelSource(NAME, str(bench.model()))], limits=Limits(**limits))
    )

    async def used() -> Found:
        try:
            return await use(engine)
        finally:
            await engine.close(10.0)

    return asyncio.run(used())


def _asked(prompt: str = PROMPTS[0], **sampling: Any) -> Request:
    return Request(NAME, prompt=prompt, sampling=replace(GREEDY, **sampling))


@laws("a reply depends on its request alone")
def alone(brought: Brought, bench: Bench) -> None:
    """Asked alone, all at once and in another order, requests get the same replies; so do sampled ones with a seed."""

    async def use(engine: Engine) -> None:
        for options in ({}, {"temperature": 1.0, "seed": 7} if "seed" in engine.supports else {}):
            requests = [_asked(prompt, **options) for prompt in PROMPTS]
            each = [(await ask(engine, request)).tokens for request in requests]
            together = [reply.tokens for reply in await asyncio.gather(*(ask(engine, one) for one in requests[::-1]))]
            assert together[::-1] == each, "a reply depends on what is asked beside it"

    _with(brought, bench, use)


@laws("a reply ends at its limit, and says so")
def limited(brought: Brought, bench: Bench) -> None:
    """With `ignore_eos` it has as many tokens as were asked for, whose pieces come before it is whole."""

    async def use(engine: Engine) -> None:
        for count in (1, 5, LONGEST):
            reply = await ask(engine, _asked(max_tokens=count))
            assert len(reply.tokens) == count and reply.pieces[-1].finish_reason == "length"
        if "stream" in engine.supports:
            long = await ask(engine, _asked(max_tokens=LONG))  # a reader may be slower than a few tokens
            assert len(long.pieces) > 2, "a stream comes at once"

    _with(brought, bench, use)


@laws("a stop string ends a reply, and no part of it is shown")
def stopped(brought: Brought, bench: Bench) -> None:
    """Every part of a reply, asked for as a stop string, ends it where it first stands."""

    async def use(engine: Engine) -> None:
        whole = (await ask(engine, _asked())).text
        stops = {whole[start:stop] for start in range(len(whole)) for stop in (start + 1, start + 3)} - {""}
        for stop in sorted(stops)[:24]:
            reply = await ask(engine, _asked(stop=(stop,)))
            assert reply.text == whole[: whole.index(stop)], f"with {stop!r} it is {reply.text!r} of {whole!r}"
            assert reply.pieces[-1].finish_reason == "stop"

    _with(brought, bench, use)


@laws("a reply has its least number of tokens, and shows what ended it where that is asked")
def least(brought: Brought, bench: Bench) -> None:
    """A stop string that stands before it ends no reply; with `include_stop_str_in_output` the one that does is its last text."""

    async def use(engine: Engine) -> None:
        if not {"min_tokens", "include_stop_str_in_output"} <= engine.supports:
            return
        whole = await ask(engine, _asked())
        for stop in sorted({whole.text[at : at + 1] for at in range(len(whole.text))})[:8]:
            reply = await ask(engine, _asked(stop=(stop,), include_stop_str_in_output=True))
            assert reply.text == whole.text[: whole.text.index(stop) + 1]
            reply = await ask(engine, _asked(stop=(stop,), min_tokens=LONGEST))
            assert reply.tokens == whole.tokens and reply.text == whole.text, "it ended too early"
        ended = _asked(ignore_eos=False, stop_token_ids=tuple(set(whole.tokens)), min_tokens=LONGEST)
        reply = await ask(engine, ended)
        assert len(reply.tokens) == LONGEST and not set(reply.tokens) & set(whole.tokens), "a token ended it too early"

    _with(brought, bench, use)


@laws("tokens of a prompt are those that it counts, and say it")
def tokenized(brought: Brought, bench: Bench) -> None:
    """They can be asked in its place, and their text is that of the prompt."""

    async def use(engine: Engine) -> None:
        if "tokenize" not in engine.supports:
            return
        for prompt in (*PROMPTS, "日本 🙂 <|im_end|>"):
            found = await engine.tokenize(_asked(prompt))
            assert len(found.tokens) == len(found.texts) == await engine.count(_asked(prompt))
            assert (await engine.detokenize(NAME, found.tokens)).endswith(prompt)
            asked = replace(_asked(), prompt=None, tokens=found.tokens)
            assert (await ask(engine, asked)).tokens == (await ask(engine, _asked(prompt))).tokens
        with pytest.raises(RequestError):
            await engine.detokenize(NAME, [10**9])

    _with(brought, bench, use)


@laws("what is not there and what is closed is told by its error")
def refused(brought: Brought, bench: Bench) -> None:
    """An unknown model or tenant is Unknown, a request that asks nothing a RequestError, one behind `close` is Gone."""

    async def use(engine: Engine) -> Engine:
        for request, error in (
            (Request("other", prompt="a"), Unknown),
            (Request(NAME, tenant="nobody", prompt="a"), Unknown),
            (Request(NAME), RequestError),
        ):
            with pytest.raises(error):
                await ask(engine, request)
        assert (await ask(engine, _asked())).text is not None, "a request that failed stopped others"
        return engine

    closed = _with(brought, bench, use)
    with pytest.raises(Gone):
        asyncio.run(ask(closed, _asked()))


@laws("a reader who leaves makes room")
def cancelled(brought: Brought, bench: Bench) -> None:
    """With room for one request, the next is answered as soon as the reader of the one before is gone."""

    async def use(engine: Engine) -> None:
        if "cancel" not in engine.supports:
            return
        expected = (await ask(engine, _asked())).tokens
        for _ in range(3):
            stream = engine.submit(_asked(max_tokens=400))
            await anext(stream)
            await stream.aclose()
        assert (await ask(engine, _asked())).tokens == expected

    _with(brought, bench, use, max_batch=1)

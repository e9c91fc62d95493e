"""A reply comes to its end whatever happens meanwhile: its reader gets all of it, or is told what went wrong."""

from __future__ import annotations

import asyncio
import time

import pytest

from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_serve.batching.grammar import grammars_of
from gym_serve.batching.replies import Reply
from gym_serve.contract import Grammar, Limits, ModelSource, Piece, Request, Sampling, Usage
from gym_serve.errors import RequestError
from gym_serve.local.config import Local
from gym_torch.generation.row import Row


class Late(Reply):
    """A reply that ends at the moment in which its reader looks whether it has ended."""

    late: Row | None = None
    ends = False

    @property
    def over(self) -> bool:
        row, self.late = self.late, None
        if row is not None:
            row.took(70, 0.0)
            self.told(row)
            self.ended(None)
        return self.ends

    @over.setter
    def over(self, ends: bool) -> None:
        self.ends = ends


def test_the_last_piece_is_read_when_it_comes_with_the_end() -> None:
    tokenizer, row = Tokenizer(locate("tiny")), Row((1,), 2)
    reply = Late(tokenizer, Sampling(), frozenset(), "")

    async def read() -> list[Piece | None]:
        row.took(69, 0.0)
        reply.told(row)
        first = await reply.next()
        reply.late = row
        return [first, await reply.next(), await reply.next()]

    first, last, end = asyncio.run(read())
    assert first is not None and first.tokens == (69,) and end is None
    assert last is not None and last.tokens == (70,) and last.finish_reason == "length" and last.usage is not None


def test_a_reply_whose_tenant_cannot_be_let_go_of_has_an_end() -> None:
    reply = Reply(Tokenizer(locate("tiny")), Sampling(), frozenset(), "")

    def failing() -> None:
        raise OSError("the disk is gone")

    reply.close = failing
    reply.ended(None)
    with pytest.raises(RequestError, match="OSError"):
        asyncio.run(asyncio.wait_for(reply.next(), 20))


class Closing(asyncio.SelectorEventLoop):
    """A loop that is closed just after somebody asked whether it is."""

    asked = True

    def is_closed(self) -> bool:
        return not self.asked and super().is_closed()


def test_a_loop_that_closes_while_a_reply_is_decoded_hurts_no_later_one() -> None:
    engine = Local(dtype="float32").build(artifacts=[ModelSource("tiny", "tiny")], limits=Limits())
    greedy = Sampling(max_tokens=300, temperature=0.0, ignore_eos=True)

    async def read(sampling: Sampling) -> list[Piece]:
        return [piece async for piece in engine.submit(Request("tiny", prompt="a", sampling=sampling))]

    async def later() -> None:
        async with asyncio.timeout(20):
            assert (await read(Sampling(max_tokens=3, ignore_eos=True)))[-1].usage is not None
        await engine.close(0)

    loop = Closing()
    stream = engine.submit(Request("tiny", prompt="a", sampling=greedy))
    loop.run_until_complete(anext(stream))
    loop.close()
    for _ in range(2000):  # the rest of it is decoded for nobody
        if not engine.statistics()["running"]:
            break
        time.sleep(0.01)
    loop.asked = False
    asyncio.run(later())


def test_pieces_tell_the_usage_so_far() -> None:
    reply = Reply(Tokenizer(locate("tiny")), Sampling(), frozenset(), "")
    row = Row((1, 2, 3), 2, reused=2)
    row.took(69, 0.0)
    reply.told(row)
    piece = asyncio.run(reply.next())
    assert piece is not None and piece.finish_reason is None and piece.usage == Usage(3, 1, 2)


def test_an_end_that_the_tokenizer_does_not_have_ends_no_grammar() -> None:
    """Configs of some models name one."""
    words = Tokenizer(locate("tiny"))
    mask = grammars_of(words, words.vocab_size + 64, frozenset({1, words.vocab_size + 3})).compile(
        Grammar("regex", "a"), 100, 5
    )
    mask.accept(words.encode("a")[0])
    assert mask.over

"""The engine `vllm` for serving, over a server whose replies are written here: what it is asked, and what it may not do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import pytest

from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_serve.contract import Grammar, Limits, ModelSource, Piece, Request, Sampling
from gym_serve.errors import BadRequest, Full, RequestError
from gym_vllm.serving.config import ServedByVLLM
from gym_vllm.serving.engine import VLLMEngine

SAID = [72, 105, 33]  #: tokens of a reply


class Desk(ThreadingHTTPServer):
    """Lists one model, and replies to all else with `status` and `body`."""

    daemon_threads = True
    status, body = 200, b""
    go: Event | None = None  #: what replies wait for

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: Desk

    def do_GET(self) -> None:
        self.say(200, json.dumps({"data": [{"id": "tiny"}]}).encode())

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.server.go is not None:
            self.server.go.wait(20)
        self.say(self.server.status, self.server.body)

    def say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def desk() -> Iterator[Desk]:
    with Desk() as found:
        Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        yield found
        found.shutdown()


@contextmanager
def served(desk: Desk) -> Iterator[Callable[[Request], list[Piece]]]:
    """Yield what asks the engine for a reply."""
    config = ServedByVLLM(url=f"http://127.0.0.1:{desk.server_port}", timeout=5.0)
    engine = config.build(artifacts=[ModelSource("tiny", "tiny")], limits=Limits(max_batch=2, max_context=256))

    async def pieces(request: Request) -> list[Piece]:
        return [piece async for piece in engine.submit(request)]

    yield lambda request: asyncio.run(pieces(request))
    asyncio.run(engine.close())


def asking(**sampling: Any) -> Request:
    return Request("tiny", tokens=[5, 6, 7], sampling=Sampling(**{"max_tokens": 8, **sampling}))


def chunk(tokens: list[int], finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": "", "token_ids": tokens, "logprobs": None, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def test_every_setting_reaches_the_server(desk: Desk) -> None:
    said = {
        "temperature": 0.0, "top_p": 0.7, "top_k": 9, "min_p": 0.2, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "repetition_penalty": 1.2, "ignore_eos": True,
    }  # fmt: skip
    desk.body = chunk(SAID, "stop") + b"data: [DONE]\n\n"
    with served(desk) as ask:
        for seed in (3, 3, 4):
            more = {"stop_token_ids": (11, 12), "logit_bias": {5: -100.0}, "logprobs": 2, "min_tokens": 20}
            ask(asking(seed=seed, **more, **said))
    one, other, third = desk.asked
    assert {name: one[name] for name in said} == said
    assert one["stop_token_ids"] == [11, 12] and one["logit_bias"] == {"5": -100.0} and one["logprobs"] == 2
    assert one["max_tokens"] == one["min_tokens"] == 8 and one["prompt"] == [5, 6, 7] and one["stream"] is True
    assert one["seed"] == other["seed"] != third["seed"]


def test_what_a_server_would_not_do_exactly_is_refused_by_name(desk: Desk) -> None:
    """Words are no field of a server's completions; behind a grammar that is over, it would draw from nothing."""
    grammar = Grammar("regex", "a")
    with served(desk) as ask:
        for said, key in (
            ({"bad_words": ("a",)}, "bad_words"),
            ({"grammar": grammar, "min_tokens": 3}, "min_tokens"),
            ({"stop_token_ids": (10**9,)}, "stop_token_ids"),
        ):
            with pytest.raises(BadRequest) as caught:
                ask(asking(**said))
            assert caught.value.problems[0].key == key
    assert not desk.asked


def test_ends_are_looked_for_behind_the_least_number_of_tokens(desk: Desk) -> None:
    words = Tokenizer(locate("tiny"))
    said = words.encode("7+8")
    texts = [words.decode([token]) for token in said]
    desk.body = chunk(said, "length")
    with served(desk) as ask:
        for least in range(4):
            stop, ends = texts[1], least < 2
            for shows in (False, True):
                asked = asking(stop=(stop,), min_tokens=least, include_stop_str_in_output=shows, max_tokens=3)
                shown = texts[0] + stop * shows if ends else "".join(texts)
                assert "".join(piece.text for piece in ask(asked)) == shown


@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n", chunk([], "abort"), chunk([], None)])
def test_a_reply_that_breaks_off_is_an_error(desk: Desk, end: bytes) -> None:
    """Half of a text is none, and nobody but the server ended it."""
    desk.body = chunk(SAID) + end
    with served(desk) as ask, pytest.raises(RequestError, match="broke off"):
        ask(asking())
    desk.body = chunk(SAID) + chunk([], "stop")
    with served(desk) as ask:
        assert ask(asking())[-1].finish_reason == "stop"
    desk.body = chunk(SAID, "length")
    with served(desk) as ask:
        assert ask(asking(max_tokens=3))[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("status", "body", "error", "why"),
    [
        (200, b"data: {\n\n", RequestError, "no stream of tokens"),
        (200, b"<html>Bad Gateway</html>", RequestError, "no stream of tokens"),
        (200, b'data: {"choices": [{"token_ids": ["x"]}]}\n\n', RequestError, "no stream of tokens"),
        (200, b'data: {"choices": [5]}\n\n', RequestError, "no stream of tokens"),
        (200, b"data: " + b"[" * 100_000 + b"\n\n", RequestError, "no stream of tokens"),
        (200, b'data: {"choices": [{"token_ids": [5, 6], "logprobs": {"token_logprobs": [-1]}}]}\n\n', RequestError, "no stream"),
        (200, chunk(SAID) + b'data: {"error": {"message": "out of memory"}}\n\n', RequestError, "out of memory"),
        (200, chunk([10**9]), RequestError, "no token"),
        (200, chunk([-1]), RequestError, "no token"),
        (200, b"data: " + b" " * (1 << 23), RequestError, "no stream of tokens"),
        (500, b"oh", RequestError, "status 500"),
        (503, b"", Full, "busy"),
        (400, b'{"message": "top_k must be -1"}', BadRequest, "top_k must be -1"),
    ],
)  # fmt: skip
def test_what_is_no_reply_is_an_error_that_says_so(
    desk: Desk, status: int, body: bytes, error: type[Exception], why: str
) -> None:
    desk.status, desk.body = status, body
    with served(desk) as ask, pytest.raises(error, match=why):
        ask(asking())


def test_users_take_turns_and_each_copy_has_its_replies(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VLLMEngine, "_start", lambda self, config: (f"http://127.0.0.1:{desk.server_port}", ""))
    engine = ServedByVLLM(replicas=2).build(
        artifacts=[ModelSource("tiny", "tiny")], limits=Limits(max_batch=2, max_context=256, queue=8)
    )
    desk.body, desk.go = chunk(SAID, "stop") + b"data: [DONE]\n\n", Event()

    async def ask(token: int, owner: str) -> int:
        request = Request("tiny", tokens=[token], sampling=Sampling(max_tokens=8), owner=owner)
        return len([piece async for piece in engine.submit(request)])

    async def use() -> None:
        many = [asyncio.create_task(ask(5, "ann")) for _ in range(12)]
        while engine.statistics()["waiting"] < 8 or len(desk.asked) < 4:
            await asyncio.sleep(0.01)
        assert engine.statistics() == {"running": 4, "waiting": 8} and len(desk.asked) == 4
        with pytest.raises(Full):
            await ask(5, "ann")
        other = asyncio.create_task(ask(6, "ben"))
        while engine.statistics()["waiting"] < 9:
            await asyncio.sleep(0.01)
        desk.go.set()
        assert await other and all(await asyncio.gather(*many))
        await engine.close()

    asyncio.run(asyncio.wait_for(use(), 30))
    assert [6] in [each["prompt"] for each in desk.asked[4:8]]

"""Who asks: what an engine keeps of a prompt serves the same token alone, and nobody waits for all that another one asks for."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from api_server import Served, post, served
from parrot import Parrot

from gym_serve.api.auth import Access, Tokens, digest
from gym_serve.batching.aside import Aside, CrowdedError
from gym_serve.contract import Limits, ModelSource
from gym_serve.errors import BadRequest
from gym_serve.local.config import Local

OWNERS = {"a" * 20: "ann", "b" * 20: "ben"}
TOKENS = Tokens([(digest(token), Access(("*",), owner)) for token, owner in OWNERS.items()])
ANN, BEN = OWNERS


def ask(server: Served, token: str, model: str, **options: object) -> int:
    """Return the status of an answer."""
    body = {"model": model, "messages": [{"role": "user", "content": "one"}], **options}
    return post(server.url, "/v1/chat/completions", body, Authorization=f"Bearer {token}")[0]


def test_each_token_is_an_owner_of_its_own() -> None:
    engine = Parrot().build(artifacts=[ModelSource("parrot", "")], limits=Limits())
    with served(engine, TOKENS) as server:
        for token in OWNERS:
            ask(server, token, "parrot")
    assert [request.owner for request in engine.seen] == ["ann", "ben"]


def test_one_who_asks_for_much_leaves_the_next_place_to_others() -> None:
    engine = Local().build(artifacts=[ModelSource("tiny", "tiny")], limits=Limits(max_batch=2, queue=14))
    done: list[int] = []
    with served(engine, TOKENS, max_concurrent=16) as server, ThreadPoolExecutor(20) as threads:

        def many(number: int) -> int:
            status = ask(server, ANN, "tiny", max_tokens=60, ignore_eos=True)
            done.append(number)
            return status

        asked = [threads.submit(many, number) for number in range(20)]
        until = time.monotonic() + 20
        while engine.statistics()["running"] < 2 and time.monotonic() < until:
            time.sleep(0.01)
        while ask(server, ANN, "tiny", max_tokens=1) != 429 and time.monotonic() < until:
            time.sleep(0.01)
        assert ask(server, BEN, "tiny", max_tokens=2) == 200
        left = 20 - len(done)
        statuses = [each.result() for each in asked]
    assert left >= 8 and set(statuses) == {200, 429}, (left, statuses)


def test_what_is_prepared_of_one_is_not_before_all_of_another() -> None:
    aside, go, order = Aside(), threading.Event(), list[str]()

    def prepared(name: str) -> None:
        go.wait(20)
        order.append(name)

    async def use() -> None:
        tasks = [asyncio.create_task(aside.run(lambda: prepared("ann"), user="ann")) for _ in range(40)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(aside.run(lambda: prepared("ben"), user="ben")))
        gone = asyncio.create_task(aside.run(lambda: prepared("gone"), user="cid"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*tasks)

    asyncio.run(use())
    aside.close()
    assert len(order) == 41 and "ben" in order[:9] and "gone" not in order


@pytest.mark.parametrize(
    ("path", "body", "work"),
    [
        ("/v1/embeddings", {"input": ["a"] * 16}, "gym_serve.local.pooling.embeddings"),
        ("/tokenize", {"prompt": "a"}, "gym_serve.batching.engine.tokenized_by"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}]}, "gym_serve.batching.engine.tokenized_by"),
        ("/detokenize", {"tokens": [70]}, "gym_serve.batching.bounds.check_tokens"),
        (
            "/v1/messages/count_tokens",
            {"messages": [{"role": "user", "content": "a"}]},
            "gym_serve.batching.engine.prompt_of",
        ),
    ],
)
def test_one_who_asks_for_many_numbers_is_not_before_another(
    path: str, body: dict[str, Any], work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, go, done = Local().build(artifacts=[ModelSource("tiny", "tiny")], limits=Limits()), threading.Event(), []
    module, _, name = work.rpartition(".")
    own = getattr(importlib.import_module(module), name)

    def slowly(*given: Any) -> Any:
        go.wait(20)
        time.sleep(0.02)
        return own(*given)

    monkeypatch.setattr(work, slowly)
    with served(engine, TOKENS) as server, ThreadPoolExecutor(41) as threads:

        def send(token: str) -> None:
            assert post(server.url, path, {"model": "tiny", **body}, Authorization=f"Bearer {token}")[0] == 200
            done.append(token)

        asked = [threads.submit(send, ANN) for _ in range(40)]
        time.sleep(1)
        asked.append(threads.submit(send, BEN))
        time.sleep(0.3)
        go.set()
        for each in asked:
            each.result()
    asyncio.run(engine.close())
    assert done.index(BEN) < 20, done


@pytest.mark.parametrize("beside", [True, False])
def test_who_found_no_room_beside_one_that_has_ended_since_tries_again(beside: bool) -> None:
    aside, tries = Aside(), [0]

    def opened() -> str:
        tries[0] += 1
        with aside.holding():
            if tries[0] < 3:
                with aside.holding() if beside else nullcontext():  # of another thread
                    pass
                raise CrowdedError("no room")
            return "there"

    if beside:
        assert asyncio.run(aside.run(opened)) == "there"
    else:
        with pytest.raises(BadRequest, match="no room"):
            asyncio.run(aside.run(opened))
    aside.close()

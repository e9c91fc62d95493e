"""The engine `local`: in fp32 a reply is the generator's own text, whatever is asked beside it and however it is read."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from gym_serve_requests import GREEDY, LONGEST, asking, pieces, text
from hostile_templates import HOSTILE
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_data.chat import render
from gym_data.location import locate
from gym_serve.batching import grammar
from gym_serve.batching.engine import BatchEngine
from gym_serve.contract import Grammar, Limits, ModelSource, Request
from gym_serve.errors import BadRequest, Full, Gone, RequestError, TooLong, Unknown
from gym_serve.local.config import Local
from gym_serve.local.engine import LocalEngine
from gym_serve.local.model import LocalModel
from gym_serve.local.opening import open_source
from gym_serve.local.tenants import Answering
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.laws import servers
from gym_torch.generation import scheduler
from gym_torch.generation.cache_support import CacheSupport
from gym_torch.generation.decoding import Decoding
from gym_torch.generation.generator import Generator, complete
from gym_torch.generation.prefill import ChunkedPrefill
from gym_torch.kernels import fused_ops
from gym_torch.patched_forward import plain

ASKS = ["3 + 4?", "Who are you?", "Say the alphabet backwards, please.", "a", "3 + 4?"]


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    made = Local(dtype="float32").build(
        artifacts=[ModelSource("tiny", "tiny")], limits=Limits(queue=8, grammar_bytes=10_000)
    )
    yield made
    asyncio.run(made.close())


@pytest.mark.parametrize("law", servers.laws.laws, ids=lambda law: law.text)
def test_it_holds_to_the_laws_of_servers(law: Any, tmp_path: Path) -> None:
    law.check(Brought("servers", "local", Local), Bench(tmp_path))


def test_replies_are_the_generators_own_text(engine: LocalEngine) -> None:
    """Alone, together, and entering while others are decoded."""
    served = engine.served["tiny"]
    rows = [{"messages": [{"role": "user", "content": ask}]} for ask in ASKS]
    expected = complete(served.model, served.tokenizer, rows, LONGEST)

    async def use() -> None:
        assert [await text(engine, asking(ask)) for ask in ASKS] == expected
        tasks = []
        for ask in ASKS * 3:
            tasks.append(asyncio.create_task(text(engine, asking(ask))))
            await asyncio.sleep(0.003)
        assert await asyncio.gather(*tasks) == expected * 3
        options = [{"temperature": 4.0, "top_p": 0.99, "seed": 3}, {"temperature": 4.0, "top_k": 9, "seed": 4}, {}]
        alone = [await text(engine, asking(ASKS[2], **each)) for each in options]
        mixed = await asyncio.gather(*(text(engine, asking(ASKS[2], **each)) for each in options))
        assert mixed == alone and len(set(alone)) > 1

    asyncio.run(use())


def test_it_computes_with_the_kernels_that_the_generator_takes(engine: LocalEngine) -> None:
    """Those of a base before tenants stand in the place of its modules, and those of a model that gets a lane of its own."""
    own, lane = (AutoModelForCausalLM.from_pretrained(locate("tiny")) for _ in range(2))
    Generator(own, None)
    scheduler.model_lane(lane, CacheSupport(True), 8)
    found, base, expected = (
        [name for name, part in model.named_modules() if not plain(part)]
        for model in (lane, open_source(ModelSource("tiny", "tiny"), Limits(), "float32").model, own)
    )
    assert found == base == expected and (expected or fused_ops.kernel() is None)


def test_requests_that_are_prepared_side_by_side_get_one_lane(engine: LocalEngine) -> None:
    served = engine.served["tiny"]
    model = LocalModel(served, Limits(), None)

    class Slow:
        home, context, alone = served, served.context, False

        @property
        def model(self) -> PreTrainedModel:
            time.sleep(0.02)
            return served.model

    with ThreadPoolExecutor(4) as pool:
        assert len({id(lane) for lane in pool.map(model.lane, [Slow()] * 4, [False] * 4)}) == 1


def test_a_prefix_that_was_kept_changes_nothing_and_is_the_owners_alone(engine: LocalEngine) -> None:
    async def use() -> None:
        request = asking("What is it that I asked? " * 4)
        plain = await pieces(engine, request)
        cached = []
        for owner in ("ann", "ann", "ben", None):
            found = await pieces(engine, replace(request, owner=owner))
            assert "".join(piece.text for piece in found) == "".join(piece.text for piece in plain)
            assert found[-1].usage is not None
            cached.append(found[-1].usage.cached_tokens)
        assert cached[0] == cached[2] == cached[3] == 0 and cached[1] > 16

    asyncio.run(use())


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "ben"]}, "ages": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
    "required": ["name", "ages"],
    "additionalProperties": False,
}  # fmt: skip


def test_no_token_that_ends_a_turn_is_written_behind_a_grammar(engine: LocalEngine) -> None:
    async def use() -> None:
        hot = {"temperature": 1.5, "grammar": Grammar("regex", "ab?"), "ignore_eos": True}
        assert {await text(engine, asking(seed=seed, **hot)) for seed in range(4)} <= {"a", "ab"}

    asyncio.run(use())


def test_grammars_hold_and_their_neighbours_are_free(engine: LocalEngine) -> None:
    async def use() -> None:
        free = await text(engine, asking(temperature=0.0))
        schema, number = Grammar("json_schema", json.dumps(SCHEMA)), Grammar("regex", "[a-f]{3}-[0-9]{2}")
        hot = {"temperature": 1.5, "max_tokens": 200}
        requests = [asking(grammar=schema, seed=seed, **hot) for seed in range(4)]
        requests += [asking(grammar=number, seed=seed, **hot) for seed in range(3)]
        *found, beside = await asyncio.gather(*(text(engine, each) for each in [*requests, asking(temperature=0.0)]))
        assert beside == free
        for written in found[:4]:
            jsonschema.validate(json.loads(written), SCHEMA)
        assert all(len(written) == 6 and written[3] == "-" for written in found[4:]) and len(set(found[4:])) > 1

    asyncio.run(use())


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", "(a|aa)+" * 2000),
        Grammar("regex", "(((((a{1,500}){1,500}){1,500}){1,500}){1,500})b"),
        Grammar("regex", "("),
        Grammar("json_schema", "[" * 2000 + "]" * 2000),
        Grammar("json_schema", '{"type": "no such type"}'),
        Grammar("json_schema", json.dumps({"type": "string", "pattern": "(x+x+)+y" * 500})),
        Grammar("json_schema", '{"$ref": "http://localhost/schema"}'),
        Grammar("lark", "start: start start | start"),
    ],
    ids=range(8),
)
def test_a_hostile_grammar_costs_little_and_hurts_nobody(engine: LocalEngine, grammar: Grammar) -> None:
    async def use() -> None:
        beside = asyncio.create_task(text(engine, asking()))
        try:
            async with asyncio.timeout(20):
                await text(engine, asking(grammar=grammar, temperature=1.0, seed=1))
        except RequestError as error:
            assert isinstance(error, BadRequest)
        assert await beside == await text(engine, asking())

    asyncio.run(use())


def test_what_is_wrong_with_a_grammar_is_told_by_its_field(engine: LocalEngine) -> None:
    async def use() -> None:
        for key, given in (
            ("tools", Grammar("lark", "start: nothing", "tools")),
            ("response_format", Grammar("regex", "(")),
        ):
            with pytest.raises(BadRequest) as caught:
                await text(engine, asking(grammar=given))
            assert caught.value.problems[0].key == key

    asyncio.run(use())


def test_what_a_request_changes_in_logits(engine: LocalEngine) -> None:
    async def use() -> None:
        (first, *_) = (await pieces(engine, asking(max_tokens=1, logprobs=3)))[0].logprobs
        assert len(first.top) == 3 and first.top[0].token == first.token and first.logprob == first.top[0].logprob
        assert first.utf8.decode(errors="replace") == first.text
        banned = await pieces(engine, asking(max_tokens=1, logit_bias={first.token: -100.0}))
        assert banned[0].tokens == (first.top[1].token,)
        forced = await pieces(engine, asking(max_tokens=6, logit_bias={50: 100.0}, ignore_eos=True))
        assert {token for piece in forced for token in piece.tokens} == {50}
        spread = await pieces(engine, asking(max_tokens=6, logit_bias={50: 100.0}, presence_penalty=200.0))
        assert [token for piece in spread for token in piece.tokens].count(50) == 1

        hot = {"temperature": 3.0, "logprobs": 20, "max_tokens": 1}
        drawn = [await pieces(engine, asking(**hot, min_p=0.5, seed=seed)) for seed in range(40)]
        told = [found[0].logprobs[0] for found in drawn]
        kept = {each.token for each in told[0].top if (each.logprob - told[0].top[0].logprob) / 3.0 >= math.log(0.5)}
        assert {each.token for each in told} == kept and 1 < len(kept) < 20
        alone = [await pieces(engine, asking(**hot, min_p=1.0, seed=seed)) for seed in range(4)]
        assert {found[0].tokens for found in alone} == {(first.token,)}

    asyncio.run(use())


def test_each_error_is_told_to_its_request(engine: LocalEngine) -> None:
    wrong: list[tuple[Request, type[RequestError]]] = [
        (replace(asking(), model="other"), Unknown),
        (replace(asking(), tenant="ann"), Unknown),
        (replace(asking(), prompt="and this"), BadRequest),
        (replace(asking(), messages=None, tokens=[10**9]), BadRequest),
        (replace(asking(), messages=None, tokens=[5] * 10**6), TooLong),
        (replace(asking(), messages=[{"role": "no such role", "content": 1}]), BadRequest),
        (asking(logprobs=10**6), BadRequest),
        (asking(logit_bias={10**9: 1.0}), BadRequest),
        (asking(grammar=Grammar("regex", "a" * 20_000)), BadRequest),
    ]

    async def use() -> None:
        for request, error in wrong:
            with pytest.raises(error):
                await pieces(engine, request)

    asyncio.run(use())


def test_what_is_too_long_is_told_by_its_field(engine: LocalEngine) -> None:
    for request, field in ((asking("a" * 10**4), "messages"), (Request("tiny", prompt="a" * 10**4), "prompt")):
        with pytest.raises(TooLong) as caught:
            asyncio.run(pieces(engine, request))
        assert caught.value.problems[0].key == field


def test_a_full_queue_refuses_and_those_in_it_are_answered() -> None:
    async def use() -> None:
        small = Local().build(artifacts=[ModelSource("tiny", "tiny")], limits=Limits(max_batch=1, queue=2))
        long = asking(max_tokens=40, ignore_eos=True)
        found = await asyncio.gather(*(text(small, long) for _ in range(12)), return_exceptions=True)
        answered = [each for each in found if isinstance(each, str)]
        assert len(set(answered)) == 1 and len(answered) >= 3
        assert all(isinstance(each, str | Full) for each in found) and len(answered) < 12
        stream = small.submit(asking(max_tokens=10_000, ignore_eos=True))
        await anext(stream)
        await small.close(0.2)
        with pytest.raises(Gone):
            async for _ in stream:
                pass

    asyncio.run(use())


class Counted(LocalModel):
    """Counts what holds it, and takes a while to open."""

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__(engine.served["tiny"], Limits(), None)
        self.holds: list[int] = []
        self.opening, self.go_on = threading.Event(), threading.Event()

    def open(self, tenant: str | None, stack: ExitStack) -> Answering:
        self.opening.set()
        assert self.go_on.wait(20)
        stack.callback(self.holds.append, -1)
        self.holds.append(1)
        return super().open(tenant, stack)


def test_a_client_that_leaves_while_its_request_is_prepared_holds_nothing(engine: LocalEngine) -> None:
    async def use() -> None:
        model = Counted(engine)
        counted = BatchEngine([model], Limits())
        asked = asyncio.create_task(text(counted, asking()))
        assert await asyncio.to_thread(model.opening.wait, 20)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        model.go_on.set()
        assert await text(counted, asking()) == await text(engine, asking())
        for _ in range(500):
            if model.holds.count(1) == model.holds.count(-1) == 2:
                break
            await asyncio.sleep(0.01)
        await counted.close()
        assert model.holds.count(1) == model.holds.count(-1) == 2

    asyncio.run(use())


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_template_hurts_nobody(
    engine: LocalEngine, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error of each request that it lays out; prompts without it are answered as ever."""
    monkeypatch.setattr(render, "SECONDS", 0.5)
    shutil.copytree(locate("tiny"), tmp_path / "evil")
    (tmp_path / "evil" / "chat_template.jinja").write_text(HOSTILE[what].replace("SIGN", str(tmp_path / "sign")))
    made = Local(dtype="float32").build(artifacts=[ModelSource("tiny", str(tmp_path / "evil"))], limits=Limits())

    async def use() -> None:
        with pytest.raises(BadRequest, match="template"):
            await pieces(made, asking())
        plain = replace(asking(), messages=None, prompt="3 + 4 =")
        assert await text(made, plain) == await text(engine, plain)
        await made.close()

    asyncio.run(use())
    assert not (tmp_path / "sign").exists()


def test_embeddings_are_last_states_of_length_one(engine: LocalEngine) -> None:
    vectors = asyncio.run(engine.embed("tiny", ["hello", "a longer text", "hello"], 5))
    assert [len(vector) for vector in vectors] == [5] * 3 and vectors[0] == pytest.approx(vectors[2])
    assert torch.tensor(vectors).norm(dim=1).tolist() == pytest.approx([1.0] * 3)
    served = engine.served["tiny"]
    tokens = torch.tensor([[*served.tokenizer.document_start, *served.tokenizer.encode("hello")]])
    with torch.no_grad():
        state = served.model.base_model(tokens).last_hidden_state[0, -1, :5]
    assert vectors[0] == pytest.approx((state / state.norm()).tolist(), abs=1e-4)


def test_nobody_waits_for_many_texts_and_those_of_a_client_that_left_are_not_embedded(
    engine: LocalEngine, monkeypatch: Any
) -> None:
    embed, parts = LocalModel.embeddings, []

    def slowly(
        self: LocalModel, answering: Answering, texts: Sequence[str], dimensions: int | None
    ) -> list[list[float]]:
        parts.append(len(texts))
        time.sleep(0.05)
        return embed(self, answering, texts, dimensions)

    monkeypatch.setattr(LocalModel, "embeddings", slowly)

    async def use() -> None:
        many = [asyncio.ensure_future(engine.embed("tiny", ["hello"] * 10_000)) for _ in range(6)]
        await asyncio.sleep(0.1)
        await asyncio.wait_for(text(engine, asking(max_tokens=2)), 20)
        assert not any(each.done() for each in many)
        for each in many:
            each.cancel()
        await asyncio.gather(*many, return_exceptions=True)
        assert len(await engine.embed("tiny", ["hello"] * 20)) == 20 and parts[-2:] == [16, 4]

    asyncio.run(use())
    assert len(parts) < 600


def test_a_long_prompt_enters_in_parts_and_nobody_waits_for_it(engine: LocalEngine, monkeypatch: Any) -> None:
    """What continues it is what continues it at once, and streams beside it go on between its parts."""
    served, long = engine.served["tiny"], "Say all of this again, word by word. " * 12
    rows = [{"messages": [{"role": "user", "content": ask}]} for ask in (long, ASKS[1])]
    expected, beside = complete(served.model, served.tokenizer, rows, LONGEST)
    monkeypatch.setattr(scheduler, "CHUNK", 16)
    entered, advance = [], Decoding.advance

    def advanced(self: Decoding, begun: ChunkedPrefill, count: int) -> None:
        entered.append((begun.done, len(self.rows), count))
        advance(self, begun, count)

    monkeypatch.setattr(Decoding, "advance", advanced)

    async def use() -> None:
        first = engine.submit(asking(ASKS[1], max_tokens=400, ignore_eos=True))
        await anext(first)
        found = await asyncio.gather(*(text(engine, asking(long)) for _ in range(3)), text(engine, asking(ASKS[1])))
        assert found == [expected] * 3 + [beside]
        await first.aclose()

    asyncio.run(use())
    assert len(entered) >= 5 and all(count == 16 and rows >= 1 for _, rows, count in entered)


def test_a_prompt_is_echoed_with_how_likely_it_was(engine: LocalEngine) -> None:
    served = engine.served["tiny"]
    prompt = served.tokenizer.encode("The alphabet is")
    request = Request("tiny", tokens=prompt, echo=True, sampling=replace(GREEDY, logprobs=2, max_tokens=3))
    found = asyncio.run(pieces(engine, request))
    told = [each for piece in found for each in piece.logprobs]
    logits = served.model(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
    assert "".join(piece.text for piece in found).startswith("The alphabet is")
    assert [each.token for each in told[: len(prompt)]] == list(prompt) and len(told) == len(prompt) + 3
    assert told[0].logprob is None and not told[0].top
    for place, (token, each) in enumerate(zip(prompt[1:], told[1:], strict=False)):
        assert each.logprob == pytest.approx(float(logits[place, token]), abs=1e-4) and len(each.top) == 2


def test_a_grammar_that_takes_too_long_is_an_error_of_its_request(engine: LocalEngine, monkeypatch: Any) -> None:
    go_on = threading.Event()
    monkeypatch.setitem(grammar.WRITTEN, "regex", lambda text: str(go_on.wait(20)))
    try:
        with pytest.raises(BadRequest, match="not compiled within"):
            engine.model("tiny").open(None, ExitStack()).grammars.compile(Grammar("regex", "a"), 100, 0.05)
    finally:
        go_on.set()

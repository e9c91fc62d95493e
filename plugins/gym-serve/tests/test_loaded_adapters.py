"""Adapters that come and go while their base is served: who may say so, from where, and what becomes of replies under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from api_server import post, served
from parrot import Parrot
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from gym_core import Artifact, GymError
from gym_serve.api.auth import Access, Tokens, digest
from gym_serve.api.options import ApiOptions
from gym_serve.api.server import check_adapters, tokens_of
from gym_serve.contract import Limits, ModelSource, Request, Sampling
from gym_serve.errors import BadRequest, Unknown
from gym_serve.local.config import Local
from gym_serve.local.engine import LocalEngine
from gym_serve.local.opening import artifact_in
from gym_testkit.bench import Bench
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.generation.generator import Generator

PROMPT = "What is it that I asked you about, please? "
ALL, ONE = "a-token-for-everything", "a-token-for-one-base"


def adapter(base: Path, into: Path, seed: int, *layers: str, **options: object) -> Path:
    """Write an adapter of peft that changes what is answered."""
    plain = AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(r=2 + seed, target_modules=list(layers or ("q_proj",)), task_type="CAUSAL_LM", **options)
    theirs = get_peft_model(plain, config)
    torch.manual_seed(seed)
    for weight in (weight for key, weight in theirs.named_parameters() if "lora_B" in key):
        weight.data.normal_()
    theirs.save_pretrained(str(into))
    return into


def engine_of(base: Path, *folders: Path, **limits: int) -> LocalEngine:
    source, bounds = ModelSource("base", str(base)), replace(Limits(), adapter_folders=folders, **limits)
    return Local(dtype="float32").build(artifacts=[source], limits=bounds)


def asking(tenant: str | None, longest: int = 12) -> Request:
    sampling = Sampling(max_tokens=longest, temperature=0.0, ignore_eos=True)
    return Request("base", tenant, prompt=PROMPT, sampling=sampling, owner="one")


async def tokens(engine: LocalEngine, request: Request) -> list[int]:
    return [token async for piece in engine.submit(request) for token in piece.tokens]


def alone(engine: LocalEngine, path: Path | None, longest: int = 12) -> list[int]:
    """Return the answer of a model of its own."""
    base = engine.served["base"]
    artifact = Artifact(base.artifact.path) if path is None else artifact_in(str(path), base.artifact.path)
    prompt = [*base.tokenizer.document_start, *base.tokenizer.encode(PROMPT)]
    return Generator(open_artifact(artifact).model, None).generate([prompt], longest, stop_ids=())[0].tokens


def test_replies_under_way_keep_what_they_began_with(tmp_path: Path) -> None:
    base = Bench(tmp_path).model()
    one, two, three = (
        adapter(base, tmp_path / "own" / name, seed, *layers)
        for seed, (name, layers) in enumerate([("one", ["q_proj"]), ("two", ["v_proj", "up_proj"]), ("three", ["o_proj"])])
    )  # fmt: skip
    engine = engine_of(base, tmp_path / "own")
    longest = 150
    expected = {path: alone(engine, path, longest) for path in (None, one, two, three)}
    assert len(set(map(tuple, expected.values()))) == 4

    async def begun(tenant: str | None, found: list[int]) -> asyncio.Task[None]:
        """Return a reply of which the first token is there."""
        there = asyncio.Event()

        async def read() -> None:
            async for piece in engine.submit(asking(tenant, longest)):
                found.extend(piece.tokens)
                there.set()

        task = asyncio.create_task(read())
        await asyncio.wait_for(there.wait(), 60)
        return task

    async def use() -> None:
        assert engine.models()[0].tenants and not engine.tenants("base")
        plain, first, second = list[int](), list[int](), list[int]()
        under_way = [await begun(None, plain)]
        await engine.add_adapter("base", "ann", "one")
        under_way.append(await begun("ann", first))
        await engine.add_adapter("base", "ann", str(two), in_place=True)  # in layers that none had
        under_way.append(await begun("ann", second))
        await engine.remove_adapter("base", "ann")
        assert max(map(len, (plain, first, second))) < longest, "nothing was under way"
        with pytest.raises(Unknown):
            await tokens(engine, asking("ann"))
        await engine.add_adapter("base", "ann", "three")
        assert await tokens(engine, asking("ann", longest)) == expected[three]
        await asyncio.gather(*under_way)
        assert [plain, first, second] == [expected[None], expected[one], expected[two]]
        await engine.remove_adapter("base", "ann")
        with pytest.raises(Unknown):
            await engine.remove_adapter("base", "ann")
        assert not engine.tenants("base") and engine.statistics()["adapter_bytes"] == 0
        await engine.close()

    asyncio.run(use())


def test_what_was_kept_of_a_prompt_is_not_that_of_a_newer_adapter(tmp_path: Path) -> None:
    base = Bench(tmp_path).model()
    one, two = (adapter(base, tmp_path / "own" / name, seed, "v_proj") for seed, name in enumerate(("one", "two")))
    engine = engine_of(base, tmp_path / "own")

    async def use() -> None:
        for path, again in ((one, False), (two, True), (one, True)):
            await engine.add_adapter("base", "ann", path.name, in_place=again)
            assert [await tokens(engine, asking("ann")) for _ in range(2)] == [alone(engine, path)] * 2
            (vector,) = await engine.embed("base", ["a"], tenant="ann")
            assert vector != (await engine.embed("base", ["a"]))[0]
        await engine.close()

    asyncio.run(use())


def test_nothing_is_loaded_from_elsewhere_or_in_the_place_of_another(tmp_path: Path) -> None:
    base, own = Bench(tmp_path).model(), tmp_path / "own"
    outside = adapter(base, tmp_path / "owner" / "outside", 1)
    adapter(base, own / "one", 0)
    adapter(base, own / "dora", 0, use_dora=True)
    linked = adapter(base, own / "linked", 0)
    (linked / "chat_template.jinja").symlink_to(base / "config.json")
    (own / "away").symlink_to(outside)
    (own / "empty").mkdir()
    other = Bench(tmp_path).model_of(hidden=16, middle=32)
    adapter(other, own / "other", 0)
    engine = engine_of(base, own, tenant_bytes=20_000)
    refused: list[tuple[str, str]] = [
        (str(outside), "no such adapter"),
        ("../owner/outside", "no such adapter"),
        ("away", "no such adapter"),
        ("linked", "no such adapter"),
        ("none", "no such adapter"),
        ("one\0", "no such adapter"),
        ("tiny", "no such adapter"),
        ("empty", "holds no model"),
        ("other", "belong to another model"),
        ("dora", "a model of its own"),
    ]

    async def use() -> None:
        for path, why in refused:
            with pytest.raises(BadRequest, match=why):
                await engine.add_adapter("base", "ann", path)
        itself = engine_of(own / "one", own)
        with pytest.raises(BadRequest, match="takes no adapters"):
            await itself.add_adapter("base", "ann", "one")
        await itself.close()
        await engine.add_adapter("base", "ann", "one")
        with pytest.raises(BadRequest, match="already"):
            await engine.add_adapter("base", "ann", "one")
        with pytest.raises(BadRequest, match="may take"):
            for number in range(100):
                await engine.add_adapter("base", f"ann{number}", "one")
        assert 0 < engine.statistics()["adapter_bytes"] <= 20_000 and await tokens(engine, asking("ann")) == alone(
            engine, own / "one"
        )
        await engine.close()

    asyncio.run(use())


def test_who_has_a_token_for_everything_loads_and_everybody_is_asked_by_the_same_name(tmp_path: Path) -> None:
    base, own = Bench(tmp_path).model(), tmp_path / "own"
    adapter(base, own / "one", 0)
    (adapter(base, own / "odd", 0) / "adapter_config.json").write_text("{}")
    known = Tokens([(digest(ALL), Access(("*",), "all")), (digest(ONE), Access(("base", "base@*"), "one"))])
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    body = {"lora_name": "base@sql", "lora_path": "one"}
    with ExitStack() as stack:
        engine = engine_of(base, own)
        at = stack.enter_context(served(engine, known, adapter_folders=(str(own),)))
        send: Callable[..., tuple[int, dict]] = lambda path, given, token=ALL: post(  # noqa: E731 - a partial cannot
            at.url, path, given, Authorization=f"Bearer {token}"
        )
        chat = {"model": "base@sql", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
        assert send("/v1/completions", chat)[0] == 404
        assert send(load, body, ONE)[0] == 403 and post(at.url, load, body)[0] == 401
        for wrong in ("sql", "other@sql", "base@", "base@a b", "base"):
            status, told = send(load, {**body, "lora_name": wrong})
            assert status == 400 and told["error"]["param"] == "lora_name" and "base@" in told["error"]["message"]
        status, told = send(load, body)
        assert status == 200 and told["id"] == "base@sql" and told["root"] == "base"
        assert send("/v1/completions", chat, ONE)[0] == 200
        assert send(load, body)[0] == 400 and send(load, {**body, "load_inplace": True})[0] == 200
        assert send(load, {**body, "odd": 1})[0] == 400
        assert send(load, {**body, "lora_path": "none", "load_inplace": True})[1]["error"]["param"] == "lora_path"
        assert send(load, {**body, "lora_path": "odd", "load_inplace": True})[1]["error"]["param"] == "lora_path"
        assert send("/v1/completions", chat)[0] == 200, "what was there before is gone"
        status, told = send(unload, {"lora_name": "base@sql"})
        assert (status, told["deleted"]) == (200, True)
        assert send(unload, {"lora_name": "base@sql"})[0] == 404 and send("/v1/completions", chat)[0] == 404
        plain = stack.enter_context(served(engine, known))
        assert post(plain.url, load, body, Authorization=f"Bearer {ALL}")[0] == 404
        nobody = stack.enter_context(served(engine, None, adapter_folders=(str(own),)))
        assert post(nobody.url, load, body)[0] == 404
        meant = stack.enter_context(served(engine, known, adapter_folders=(str(own),), tenant="sql"))
        assert post(meant.url, load, body, Authorization=f"Bearer {ALL}")[0] == 200
        assert post(meant.url, unload, {"lora_name": "base@sql"}, Authorization=f"Bearer {ALL}")[0] == 400
        asyncio.run(engine.close())


def test_the_switch_asks_for_a_token_and_for_folders_and_an_engine_that_can(tmp_path: Path) -> None:
    shown: list[str] = []
    assert tokens_of(ApiOptions(adapter_folders=(tmp_path,)), shown.append) is not None and len(shown) == 1
    assert tokens_of(ApiOptions(), shown.append) is None
    engine = Parrot().build(artifacts=[ModelSource("base", "x")], limits=Limits())
    check_adapters(engine, ())
    with pytest.raises(GymError, match="takes adapters later"):
        check_adapters(engine, (tmp_path,))
    with pytest.raises(BadRequest):
        asyncio.run(engine.add_adapter("base", "a", "b"))
    base = Bench(tmp_path).model()
    itself = engine_of(adapter(base, tmp_path / "own", 0), tmp_path)
    with pytest.raises(GymError, match="takes adapters later"):
        check_adapters(itself, (tmp_path,))
    asyncio.run(itself.close())
    local = engine_of(base, tmp_path)
    with pytest.raises(GymError, match="no such folder"):
        check_adapters(local, (tmp_path / "none",))
    check_adapters(local, (tmp_path,))
    asyncio.run(local.close())

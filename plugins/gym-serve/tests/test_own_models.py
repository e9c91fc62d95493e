"""Tenants whose variant is a model of its own: words, states and memory are its own, and go when it goes."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from gym_bitdelta.store import VariantStore
from gym_core import Artifact
from gym_core.cli import run
from gym_core.errors import OK
from gym_data.location import locate
from gym_personalization.opened_variants import ALONE
from gym_serve.contract import Grammar, Limits, ModelSource, Piece, Request, Sampling
from gym_serve.errors import BadRequest, TooLong, Unknown
from gym_serve.local.config import Local
from gym_serve.local.engine import LocalEngine
from gym_serve.local.opening import open_source
from gym_testkit.bench import Bench
from gym_testkit.tiny import write_model
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.model import mapped_weights

PROMPT = "What is it that I asked you about, please? " * 3


def engine_of(tmp_path: Path) -> LocalEngine:
    source = ModelSource("base", str(Bench(tmp_path).model()), tenants=tmp_path / "store")
    return Local(dtype="float32").build(artifacts=[source], limits=Limits())


def store_as(tmp_path: Path, user: str, model: Path) -> None:
    """Make a model the newest version of a user."""
    with VariantStore(tmp_path / "store") as store:
        known = user in {variant.user for variant in store.listing().variants}
        (store.update if known else store.create)(user, Artifact(model, "model"))


async def pieces(
    engine: LocalEngine, owner: str = "one", tokens: list[int] | None = None, **more: object
) -> list[Piece]:
    options = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, **more}
    prompt = PROMPT if tokens is None else None
    request = Request("base", "ann", prompt=prompt, tokens=tokens, sampling=Sampling(**options), owner=owner)
    return [piece async for piece in engine.submit(request)]


@pytest.mark.parametrize(
    "options", [("--with", "fp8"), ("--with", "encoded", "quantizer=bnb_4bit")], ids=lambda it: it[1]
)
def test_a_model_that_was_quantized_is_served_as_it_is_stored(tmp_path: Path, options: tuple[str, ...]) -> None:
    into = tmp_path / "quantized"
    assert run(["quantize", str(Bench(tmp_path).model()), "--into", str(into), *options]) == OK
    served, tokens = open_source(ModelSource("it", str(into)), Limits(), "float32"), torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        expected = mapped_weights.load(into, dtype=torch.float32)(tokens).logits
        assert torch.allclose(served.model(tokens).logits, expected, atol=1e-4)


def test_what_was_kept_of_a_prompt_serves_one_version_alone(tmp_path: Path) -> None:
    store_as(tmp_path, "ann", write_model(tmp_path / "first", seed=101))
    engine = engine_of(tmp_path)

    async def use() -> None:
        await pieces(engine)
        assert (await pieces(engine))[-1].usage.cached_tokens > 16
        store_as(tmp_path, "ann", write_model(tmp_path / "second", seed=103))
        mine, others = await pieces(engine, logprobs=1), await pieces(engine, owner="another", logprobs=1)
        assert mine[-1].usage.cached_tokens == 0
        assert [each for piece in mine for each in piece.logprobs] == [
            each for piece in others for each in piece.logprobs
        ]
        await engine.close()

    asyncio.run(use())


def test_embeddings_are_those_of_its_own_states(tmp_path: Path) -> None:
    own = write_model(tmp_path / "own", seed=5, hidden=16, middle=32)
    store_as(tmp_path, "ann", own)
    engine = engine_of(tmp_path)

    async def use() -> None:
        (found,) = await engine.embed("base", ["hello"], tenant="ann")
        served = engine.served["base"].tokenizer
        tokens = torch.tensor([[*served.document_start, *served.encode("hello")]])
        with torch.no_grad():
            state = open_artifact(Artifact(own, "model")).model.base_model(tokens).last_hidden_state[0, -1]
        assert found == pytest.approx((state / state.norm()).tolist(), abs=1e-4)
        with pytest.raises(BadRequest):
            await engine.embed("base", ["hello"], 17, tenant="ann")
        await engine.close()

    asyncio.run(use())


def test_grammars_and_bounds_are_those_of_its_own_words(tmp_path: Path) -> None:
    own = write_model(tmp_path / "own", seed=5)
    words = json.loads((own / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (own / "tokenizer.json").write_text(json.dumps(words))
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 256}))
    store_as(tmp_path, "ann", own)
    engine = engine_of(tmp_path)

    async def use() -> None:
        found = await pieces(engine, grammar=Grammar("regex", "a{5}"))
        assert "".join(piece.text for piece in found) == "aaaaa"
        last = open_artifact(Artifact(own, "model")).model.get_output_embeddings().weight.shape[0] - 1
        assert (await pieces(engine, tokens=[last], logit_bias={last: 1.0}))[-1].usage.completion_tokens == 8
        for wrong, why in (({"tokens": [last + 1]}, BadRequest), ({"tokens": [last] * 256}, TooLong)):
            with pytest.raises(why):
                await pieces(engine, **wrong)
        await engine.close()

    asyncio.run(use())


def test_the_template_is_that_of_the_newest_version(tmp_path: Path) -> None:
    own = write_model(tmp_path / "own", seed=5)
    store_as(tmp_path, "ann", own)
    engine = engine_of(tmp_path)

    async def use() -> None:
        before = await engine.described("base", "ann")
        assert before.answers == engine.models()[0].answers and before.answers.calls is None
        template = (locate("tiny") / "chat_template.jinja").read_text(encoding="utf-8")
        (own / "chat_template.jinja").write_text(template)
        store_as(tmp_path, "ann", own)
        found = await engine.described("base", "ann")
        assert found.answers.calls is not None and found.template_hash != before.template_hash
        with pytest.raises(Unknown):
            await engine.described("base", "ben")
        assert await engine.described("base") == engine.models()[0]
        await engine.close()

    asyncio.run(use())


def test_models_of_versions_that_were_replaced_leave_the_memory(tmp_path: Path) -> None:
    store_as(tmp_path, "ann", write_model(tmp_path / "0", seed=0))
    engine, models = engine_of(tmp_path), []

    async def use() -> None:
        for seed in range(1, ALONE + 4):
            await pieces(engine)
            with ExitStack() as stack:
                models.append(weakref.ref(engine.model("base").open("ann", stack).model))
            store_as(tmp_path, "ann", write_model(tmp_path / str(seed), seed=seed))
        gc.collect()
        assert [each() is not None for each in models] == [False] * 3 + [True] * ALONE
        await engine.close()

    asyncio.run(use())


def test_asking_reads_no_record_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_as(tmp_path, "ann", write_model(tmp_path / "own", seed=5))
    engine = engine_of(tmp_path)

    def never(store: VariantStore) -> None:
        raise AssertionError("every record of the store is read")

    async def use() -> None:
        monkeypatch.setattr(VariantStore, "listing", never)
        assert list(engine.tenants("base")) == ["ann"] and await pieces(engine)
        monkeypatch.undo()
        store_as(tmp_path, "ben", write_model(tmp_path / "another", seed=6))
        assert list(engine.tenants("base")) == ["ann", "ben"]
        await engine.close()

    asyncio.run(use())

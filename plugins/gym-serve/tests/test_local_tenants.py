"""Tenants over one base: each is answered as alone, and a model is served with the template that trained it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from gym_bitdelta.delta import file, records
from gym_bitdelta.store import VariantStore
from gym_core import Artifact, GymError, execute, load_recipe
from gym_data.templates import ChatML
from gym_data.tokenizer import Tokenizer
from gym_serve.contract import Grammar, Limits, ModelSource, Request, Sampling
from gym_serve.errors import BadRequest, Unknown
from gym_serve.local.adapter_batch import AdapterBatch
from gym_serve.local.config import Local
from gym_serve.local.engine import LocalEngine
from gym_serve.local.opening import artifact_in, tokenizer_of
from gym_testkit.bench import Bench
from gym_testkit.tiny import write_model
from gym_torch.checkpoints.base_fingerprint import base_fingerprint
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.generation.generator import Generator

PROMPT, LONGEST = "3 + 4", 10


async def tokens(engine: LocalEngine, request: Request) -> list[int]:
    return [token async for piece in engine.submit(request) for token in piece.tokens]


def asking(tenant: str | None, prompt: str = PROMPT) -> Request:
    sampling = Sampling(max_tokens=LONGEST, temperature=0.0, ignore_eos=True)
    return Request("base", tenant, prompt=prompt, sampling=sampling, owner="one")


def delta(base: Path, into: Path, seed: int, part: str = "layers", more: int = 0) -> Artifact:
    """Write a delta that changes every matrix of a part at random, so that each seed answers otherwise; it may have more rows."""
    draws, found = torch.Generator().manual_seed(seed), {}
    with safe_open(next(base.glob("*.safetensors")), "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - it is no mapping
            shape = weights.get_tensor(name).shape
            if part in name and len(shape) == 2:
                found[name] = records.raw(torch.randn(shape[0] + more, shape[1], generator=draws) * 0.3)
    into.mkdir(parents=True)
    file.write(into / file.NAME, file.made(base_fingerprint(base), found, {}, {}))
    return Artifact(into, "delta", str(base), {"delta": "gym_bitdelta:BitDelta"})


def expected(engine: LocalEngine, artifact: Artifact, prompt: str = PROMPT) -> list[int]:
    served = engine.served["base"]
    text = [*served.tokenizer.document_start, *served.tokenizer.encode(prompt)]
    return Generator(open_artifact(artifact).model, None).generate([text], LONGEST, stop_ids=())[0].tokens


def test_deltas_of_many_share_batches_with_their_base_and_each_is_answered_as_alone(tmp_path: Path) -> None:
    base, users = Bench(tmp_path).model(), ("ann", "ben", "cleo")
    with VariantStore(tmp_path / "store") as store:
        deltas = {user: delta(base, tmp_path / user, seed) for seed, user in enumerate(users)}
        for user, artifact in deltas.items():
            store.create(user, artifact)
    source = ModelSource("base", str(base), tenants=tmp_path / "store")
    engine = Local().build(artifacts=[source], limits=Limits())
    alone = {user: expected(engine, artifact) for user, artifact in deltas.items()} | {
        None: expected(engine, Artifact(base))
    }

    async def use() -> None:
        assert list(engine.tenants("base")) == [*users] and engine.models()[0].tenants
        order = [*users, None, *users, None]
        for _ in range(2):  # the second time with what was kept of prompts
            assert await asyncio.gather(*(tokens(engine, asking(user)) for user in order)) == [
                alone[user] for user in order
            ]
        with pytest.raises(Unknown):
            await tokens(engine, asking("../ann"))
        with VariantStore(tmp_path / "store") as store:
            store.update("ann", delta(base, tmp_path / "again", 7))
        assert await tokens(engine, asking("ann")) == expected(engine, Artifact(tmp_path / "again", **_rest(base)))
        await engine.close()

    asyncio.run(use())
    assert len(set(map(tuple, alone.values()))) == len(alone)


def _rest(base: Path) -> dict[str, object]:
    return {"kind": "delta", "base": str(base), "details": {"delta": "gym_bitdelta:BitDelta"}}


def test_a_tenant_that_is_first_asked_for_during_a_pass_is_answered_by_its_own_delta(tmp_path: Path) -> None:
    base = Bench(tmp_path).model()
    with VariantStore(tmp_path / "store") as store:
        store.create("ann", delta(base, tmp_path / "ann", 0))
    engine = Local().build(artifacts=[ModelSource("base", str(base), tenants=tmp_path / "store")], limits=Limits())
    model = engine.model("base")
    passes, opened = iter([True]), []

    def open_within(*_: object) -> None:
        """Open the tenant from within the first pass of the base, as a thread that prepares a request may."""
        if next(passes, False):
            opened.append(model.open("ann", stack))

    with ExitStack() as stack:
        hook = model.served.model.get_output_embeddings().register_forward_hook(open_within)

        async def use() -> tuple[list[int], list[int]]:
            found = await tokens(engine, asking(None)), await tokens(engine, asking("ann"))
            await engine.close()
            return found

        plain, own = asyncio.run(use())
        hook.remove()
    assert opened and plain == expected(engine, Artifact(base)) != own
    assert own == expected(engine, Artifact(tmp_path / "ann", **_rest(base)))


def test_a_prompt_is_echoed_by_the_head_of_its_tenant(tmp_path: Path) -> None:
    base = Bench(tmp_path).model()
    own = delta(base, tmp_path / "ann", 0, part="embed")  # which is the head as well
    with VariantStore(tmp_path / "store") as store:
        store.create("ann", own)
    engine = Local().build(artifacts=[ModelSource("base", str(base), tenants=tmp_path / "store")], limits=Limits())
    sampling = Sampling(max_tokens=1, temperature=0.0, logprobs=1)

    async def use() -> list[tuple[int, float | None]]:
        request = replace(asking("ann"), echo=True, sampling=sampling)
        told = [(each.token, each.logprob) async for piece in engine.submit(request) for each in piece.logprobs]
        await engine.close()
        return told

    text, found = zip(*asyncio.run(use()), strict=True)
    with torch.no_grad():
        scores = open_artifact(own).model(torch.tensor([text])).logits[0].log_softmax(-1)
    assert found[0] is None and len(found) > 3
    assert found[1:] == pytest.approx([float(scores[at, token]) for at, token in enumerate(text[1:])], abs=1e-4)


def test_a_tenant_with_more_tokens_shares_batches_and_both_keep_to_their_grammars(tmp_path: Path) -> None:
    base = Bench(tmp_path).model()
    with VariantStore(tmp_path / "store") as store:
        store.create("ann", delta(base, tmp_path / "ann", 0, part="embed", more=16))
    engine = Local().build(artifacts=[ModelSource("base", str(base), tenants=tmp_path / "store")], limits=Limits())
    last = engine.served["base"].vocabulary + 15
    sampling = Sampling(max_tokens=8, temperature=1.0, seed=1, grammar=Grammar("regex", "[a-c]{5}"))

    async def text(tenant: str | None) -> str:
        request = replace(asking(tenant), sampling=sampling)
        return "".join([piece.text async for piece in engine.submit(request)])

    async def use() -> None:
        found = await asyncio.gather(*(text(tenant) for tenant in ("ann", None, "ann", None)))
        assert all(len(each) == 5 and set(each) <= set("abc") for each in found)
        assert len(await tokens(engine, replace(asking("ann"), prompt=None, tokens=[last]))) == LONGEST
        for tenant, token in (("ann", last + 1), (None, last)):
            with pytest.raises(BadRequest):
                await tokens(engine, replace(asking(tenant), prompt=None, tokens=[token]))
        await engine.close()

    asyncio.run(use())


def test_tenants_for_whom_there_is_no_room_wait_for_those_at_work(tmp_path: Path) -> None:
    base, users = Bench(tmp_path).model(), ("ann", "ben", "cleo")
    with VariantStore(tmp_path / "store") as store:
        for seed, user in enumerate(users):
            store.create(user, delta(base, tmp_path / user, seed))
    source = ModelSource("base", str(base), tenants=tmp_path / "store")
    one_fits = (tmp_path / "ann" / file.NAME).stat().st_size * 3 // 2

    async def use() -> None:
        wide, one, none = (
            Local().build(artifacts=[source], limits=Limits(tenant_bytes=room)) for room in (2**29, one_fits, 1)
        )
        alone = [await tokens(wide, asking(user)) for user in users]
        for _ in range(5):
            assert await asyncio.gather(*(tokens(one, asking(user)) for user in users)) == alone
        found = [await asyncio.gather(*(at.embed("base", ["a"], tenant=user) for user in users)) for at in (wide, one)]
        assert found[0] == found[1]
        for at, user in ((one, None), (none, "ann")):
            with pytest.raises(BadRequest):
                await asyncio.wait_for(at.embed("base", ["a"], 10**9, user), 20)
        await asyncio.gather(wide.close(), one.close(), none.close())

    asyncio.run(use())


def test_adapters_of_many_share_batches_and_the_template_that_trained_serves(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    base = bench.model()
    paths = {}
    for seed, name, answer, adapter in (
        (2, "ann", "bbbb", {"name": "lora", "rank": 2}),
        (4, "ben", "zzzz", {"name": "lora", "rank": 4}),
        (5, "cat", "cccc", {"name": "dora", "rank": 2}),  # no sum of the base and a pair, so in a model of its own
        (6, "dan", "dddd", {"name": "lora", "rank": 2, "modules_to_save": ["lm_head"]}),
    ):
        row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]}
        (tmp_path / f"{name}.jsonl").write_text((json.dumps(row) + "\n") * 4)
        recipe = {
            "model": str(base),
            "data": str(tmp_path / f"{name}.jsonl"),
            "algorithm": "sft",
            "adapter": adapter,
            "train": {"max_steps": 3, "learning_rate": 0.5, "precision": "fp32", "seed": seed, "plot": False},
            "output": str(tmp_path / name),
        }
        execute(load_recipe(recipe))
        paths[name] = str(tmp_path / name)
    engine = Local().build(artifacts=[ModelSource("base", str(base), adapters=paths)], limits=Limits())

    async def use() -> None:
        order = ["ann", None, "cat", "ben", "dan", "ann", "cat", "ben"]
        found = await asyncio.gather(*(tokens(engine, asking(user)) for user in order))
        alone = [expected(engine, artifact_in(paths[user]) if user else Artifact(base)) for user in order]
        assert found == alone and len(set(map(tuple, alone))) == 5
        await engine.close()

    asyncio.run(use())
    moved = base.rename(tmp_path / "moved")
    Local().build(artifacts=[ModelSource("base", str(moved), adapters=paths)], limits=Limits())
    with pytest.raises(GymError, match="base of this adapter is not there any more"):
        Local().build(artifacts=[ModelSource("ann", paths["ann"])], limits=Limits())
    with pytest.raises(GymError, match="belongs to another base"):
        Local().build(artifacts=[ModelSource("base", str(write_model(base, seed=9)), adapters=paths)], limits=Limits())
    shutil.rmtree(base)
    moved.rename(base)
    with pytest.raises(GymError, match="has no adapters beside it"):
        Local().build(artifacts=[ModelSource("ann", paths["ann"], adapters={"ben": paths["ben"]})], limits=Limits())
    model = tmp_path / "ann" / "model"
    record = json.loads((tmp_path / "ann" / "run.json").read_text())
    assert len(record["artifact"]["details"]["template_sha256"]) == 64
    (model / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    with pytest.raises(GymError, match="another chat template"):
        Local().build(artifacts=[replace(ModelSource("ann", ""), path=paths["ann"])], limits=Limits())


def test_a_folder_that_peft_wrote_is_an_adapter_of_the_base_it_is_served_with(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    base, folder = bench.model(), tmp_path / "theirs"
    plain = AutoModelForCausalLM.from_pretrained(base)
    options = LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    theirs = get_peft_model(plain, options)
    torch.manual_seed(0)
    for name, weight in theirs.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.5)
    theirs.save_pretrained(str(folder))
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "somewhere/else"}))
    source = ModelSource("base", str(base), adapters={"them": str(folder)})
    engine = Local().build(artifacts=[source], limits=Limits())
    text = [*engine.served["base"].tokenizer.encode(PROMPT)]
    alone = theirs.generate(
        torch.tensor([text]), max_new_tokens=LONGEST, min_new_tokens=LONGEST, do_sample=False, pad_token_id=0
    )[0, len(text) :].tolist()

    async def use() -> None:
        assert await asyncio.gather(*(tokens(engine, asking(user)) for user in ("them", None))) == [
            alone, expected(engine, Artifact(base))
        ]  # fmt: skip
        await engine.close()

    asyncio.run(use())
    other = bench.model_of(hidden=16, middle=32)
    with pytest.raises(GymError, match="weights"):
        Local().build(artifacts=[replace(source, path=str(other))], limits=Limits())
    for more, why in (
        ({"bias": "all"}, "`bias`"),
        ({"peft_type": "LOHA"}, "`LOHA`"),
        ({"use_rslora": True, "use_dora": True}, "use_dora"),
    ):
        (folder / "adapter_config.json").write_text(json.dumps({**config, **more}))
        with pytest.raises(GymError, match=why):
            Local().build(artifacts=[source], limits=Limits())


HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48}


@pytest.mark.parametrize(
    ("kind", "more", "part"),
    [
        ("gpt_oss", HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2}, "sinks"),
        (
            "glm4_moe",
            HEADS
            | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1},
            "mlp.gate.",
        ),
    ],
)
def test_who_changed_what_computes_for_one_at_a_time_is_answered_beside_others(
    tmp_path: Path, kind: str, more: dict[str, int], part: str
) -> None:
    """Sinks of attention, and routers that flatten their rows: one user a pass, whoever else is asked."""
    torch.manual_seed(0)
    base, users = tmp_path / "base", ("ann", "ben")
    shutil.copytree(Bench(tmp_path).model(), base)
    options = {"vocab_size": 264, "hidden_size": 32, "num_hidden_layers": 2, **more}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options))
    model.save_pretrained(base)
    assert any(part in name for name, _ in model.named_parameters())
    artifacts: dict[str | None, Artifact] = {None: Artifact(base)}
    with VariantStore(tmp_path / "store") as store:
        for seed, user in enumerate(users):
            draws, found = torch.Generator().manual_seed(seed), {}
            for name, weight in model.named_parameters():
                if part in name or "q_proj.weight" in name:
                    found[name] = records.raw(torch.randn(weight.shape, generator=draws) * 2)
            (tmp_path / user).mkdir()
            file.write(tmp_path / user / file.NAME, file.made(base_fingerprint(base), found, {}, {}))
            artifacts[user] = Artifact(tmp_path / user, **_rest(base))
            store.create(user, artifacts[user])
    source = ModelSource("base", str(base), tenants=tmp_path / "store")
    engine = Local().build(artifacts=[source], limits=Limits())
    order = [*users, None, *users, None]

    async def use() -> None:
        alone = {user: expected(engine, artifact) for user, artifact in artifacts.items()}
        assert len(set(map(tuple, alone.values()))) == len(alone)
        for _ in range(2):  # the second time with what was kept of prompts
            found = await asyncio.gather(*(tokens(engine, asking(user)) for user in order))
            assert found == [alone[user] for user in order]
        await engine.close()

    asyncio.run(use())


class Crossing(str):
    """A name that is compared while another thread has its turn, as it were."""

    meanwhile: Callable[[], None] | None = None
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        meanwhile, Crossing.meanwhile = Crossing.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return str.__eq__(self, other)


def test_threads_that_compute_at_once_have_their_own_adapters(tmp_path: Path) -> None:
    base = Bench(tmp_path).model()
    for seed, name in enumerate(("ann", "ben")):
        theirs = get_peft_model(
            AutoModelForCausalLM.from_pretrained(base), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
        )
        torch.manual_seed(seed)
        for weight in (weight for key, weight in theirs.named_parameters() if "lora_B" in key):
            weight.data.normal_()
        theirs.save_pretrained(str(tmp_path / name))
    model = AutoModelForCausalLM.from_pretrained(base).requires_grad_(False)
    batch, text = AdapterBatch(model), torch.tensor([[5, 6, 7]])
    for name in ("ann", "ben"):
        batch.add(name, name, artifact_in(str(tmp_path / name), base), Artifact(base))

    def logits(name: str) -> torch.Tensor:
        with batch.computing([name]):
            return model(text).logits

    ben, ann = logits("ben"), logits(Crossing("ann"))
    Crossing.meanwhile = lambda: logits("ben")
    found = logits(Crossing("ann"))
    batch.close()
    assert Crossing.meanwhile is None and torch.equal(found, ann) and not torch.allclose(ann, ben)


def test_a_template_is_a_name_or_a_file_and_never_the_text_itself(tmp_path: Path) -> None:
    base, written = Bench(tmp_path).model(), tmp_path / "own.jinja"
    written.write_text("{{ messages[0].content }}")
    named = ChatML().build()
    assert tokenizer_of(base, "chatml").templates["default"] == named
    assert tokenizer_of(base, str(written)).templates["default"] == written.read_text()
    assert tokenizer_of(base, None).templates == Tokenizer(base).templates
    for wrong in ("chatlm", str(tmp_path / "none.jinja")):
        with pytest.raises(GymError):
            tokenizer_of(base, wrong)

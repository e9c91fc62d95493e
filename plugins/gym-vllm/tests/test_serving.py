"""The engine `vllm` for serving, over vLLM itself: `GYM_VLLM` names a Python that has it, as `nox -s vllm` does."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gym_vllm_itself as itself
import jsonschema
import pytest

from gym_core import Artifact, GymError
from gym_data.location import locate
from gym_serve.answer_options import AnswerOptions
from gym_serve.contract import Grammar, Limits, ModelSource, Piece, Request, Sampling
from gym_serve.errors import BadRequest, TooLong, Unknown
from gym_serve.local.config import Local
from gym_serve.options import read
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.laws import servers
from gym_vllm.launch import Server
from gym_vllm.serving.command import server_of
from gym_vllm.serving.config import ServedByVLLM
from gym_vllm.serving.model import open_model

pytestmark = pytest.mark.usefixtures("vllm_command")
needs_vllm = pytest.mark.skipif(not itself.PYTHON, reason="GYM_VLLM names no Python that has vLLM")
GREEDY = Sampling(max_tokens=16, temperature=0.0)
ASKS = ["3 + 4?", "Who are you?", "Say the alphabet backwards, please.", "日本語 🙂"]
ASKED = [{"role": "user", "content": "a"}]
ROUNDING = 1e-3  #: between the two likeliest tokens, where two runtimes in fp32 may choose differently


def asking(text: str = ASKS[0], **sampling: Any) -> Request:
    return Request("tiny", messages=[{"role": "user", "content": text}], sampling=replace(GREEDY, **sampling))


async def pieces(engine: Any, request: Request) -> list[Piece]:
    return [piece async for piece in engine.submit(request)]


def text(found: list[Piece]) -> str:
    return "".join(piece.text for piece in found)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of the tiny model that changes what it says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("adapter")
    model = AutoModelForCausalLM.from_pretrained(locate("tiny"))
    tuned = get_peft_model(
        model, LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    tuned.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, adapter: Path) -> Iterator[Any]:
    log = tmp_path_factory.mktemp("vllm") / "log"
    source = ModelSource("tiny", "tiny", adapters={"ann": str(adapter)})
    config = ServedByVLLM(dtype="float32", log=str(log), startup=500.0)
    made = config.build(artifacts=[source], limits=Limits(max_batch=4, max_context=512))
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Bench]]:
    """The address of a server that somebody else started, with the model of the laws."""
    folder = tmp_path_factory.mktemp("laws")
    bench = itself.Packaged(folder)
    config = ServedByVLLM(dtype="float32", startup=500.0, log=str(folder / "log"))
    server = Server(config, bench.model(), folder / "log", {"--served-model-name": "tiny"}, (), {}, "engine")
    url, key = server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(itself.KEY, key)
        yield url, bench
    server.stop()


@needs_vllm
def test_greedy_text_is_that_of_the_local_engine(engine: Any, adapter: Path) -> None:
    """To the first place where the two likeliest tokens are closer than rounding; for the base and for an adapter."""
    source = ModelSource("tiny", "tiny", adapters={"ann": str(adapter)})
    local = Local(dtype="float32").build(artifacts=[source], limits=Limits())

    async def use() -> None:
        said: dict[str | None, list[str]] = {None: [], "ann": []}
        for tenant, texts in said.items():
            for ask in ASKS:
                request = replace(asking(ask, logprobs=2), tenant=tenant)
                ours, theirs = [await pieces(one, request) for one in (engine, local)]
                one, other = [[each for piece in found for each in piece.logprobs] for found in (ours, theirs)]
                for mine, its in zip(one, other, strict=False):
                    if mine.token != its.token:
                        assert its.top[0].logprob - its.top[1].logprob < ROUNDING
                        break
                    assert mine.logprob == pytest.approx(its.logprob, abs=ROUNDING)
                else:
                    assert text(ours) == text(theirs) and ours[-1].finish_reason == theirs[-1].finish_reason
                texts.append(text(ours))
        assert said[None] != said["ann"]
        await local.close()

    asyncio.run(use())


@needs_vllm
@pytest.mark.parametrize("law", servers.laws.laws, ids=lambda law: law.text)
def test_it_holds_to_the_laws_of_servers(law: Any, running: tuple[str, Bench]) -> None:
    class Running(ServedByVLLM):
        url: str = running[0]
        token: str = itself.KEY

    law.check(Brought("servers", "vllm", Running), running[1])


@needs_vllm
def test_streams_stops_seeds_and_grammars(engine: Any) -> None:
    async def use() -> None:
        whole = await pieces(engine, asking(ignore_eos=True, max_tokens=100))
        assert whole[-1].usage.completion_tokens == 100  # type: ignore[union-attr]
        stop = text(whole)[5:8]
        stopped = await pieces(engine, asking(stop=(stop,), ignore_eos=True, max_tokens=100))
        assert text(stopped) == text(whole)[: text(whole).index(stop)] and stopped[-1].finish_reason == "stop"
        hot = {"temperature": 2.0, "ignore_eos": True}
        seeds = [text(await pieces(engine, asking(seed=seed, **hot))) for seed in (1, 1, 2)]
        assert seeds[0] == seeds[1] != seeds[2]
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {"name": {"enum": ["ann", "ben"]}},
            "required": ["name"],
        }
        schema["additionalProperties"] = False
        written = await pieces(engine, asking(grammar=Grammar("json_schema", json.dumps(schema)), max_tokens=80))
        jsonschema.validate(json.loads(text(written)), schema)
        await asyncio.gather(*(anext(engine.submit(asking(max_tokens=400, ignore_eos=True))) for _ in range(3)))

    asyncio.run(use())


@needs_vllm
def test_what_it_does_not_do_is_refused_by_name(engine: Any) -> None:
    wrong = [
        (replace(asking(), echo=True), BadRequest),
        (replace(asking(), tenant="ben"), Unknown),
        (replace(asking(), messages=None, tokens=[5] * 10**4), TooLong),
        (asking(grammar=Grammar("lark", "start: /a/")), BadRequest),
        (asking(logprobs=10**6), BadRequest),
    ]

    async def use() -> None:
        for request, error in wrong:
            with pytest.raises(error):
                await pieces(engine, request)

    asyncio.run(use())
    assert not {"echo", "embed", "score", "grammar:lark"} & engine.supports


def test_what_it_does_not_serve_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    two = [ModelSource("a", "tiny"), ModelSource("b", "tiny")]
    for why, sources in {
        "one model": two,
        "by the engine `local`": [ModelSource("a", "tiny", tenants=tmp_path)],
    }.items():
        with pytest.raises(GymError, match=why):
            ServedByVLLM().build(artifacts=sources, limits=Limits())


def told_of(**options: Any) -> dict[str, str]:
    """What the command line of a server says."""
    server = server_of(ServedByVLLM(**options), open_model(ModelSource("tiny", "tiny"), Limits()), Limits())
    command = server.command(8123)
    return dict(zip(command[3::2], command[4::2], strict=True))


def test_layers_and_copies_are_spread_over_gpus_and_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spread = (
        "--tensor-parallel-size",
        "--data-parallel-size",
        "--distributed-executor-backend",
        "--data-parallel-backend",
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    wide = {"tensor_parallel_size": 2, "replicas": 3}
    assert [told_of().get(name) for name in spread] == ["1", None, None, None]
    assert [told_of(**wide).get(name) for name in spread] == ["2", "3", None, None]
    assert told_of(**wide)["--host"] == "127.0.0.1"
    with pytest.raises(GymError, match="no token for the Ray cluster"):
        told_of(**wide, ray="10.0.0.1:6379")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("t" * 32)
    assert [told_of(**wide, ray="10.0.0.1:6379").get(name) for name in spread] == ["2", "3", "ray", "ray"]
    assert [told_of(ray="10.0.0.1:6379").get(name) for name in spread] == ["1", None, "ray", None]


def test_what_a_server_that_runs_already_would_not_look_at_is_refused() -> None:
    for name in ("replicas", "tensor_parallel_size", "ray", "dtype"):
        value = {"ray": "a:1", "dtype": "float32"}.get(name, 2)
        with pytest.raises(ValueError, match=f"`{name}` is of a server that is started here"):
            ServedByVLLM(url="http://127.0.0.1:1", **{name: value})
    assert ServedByVLLM(url="http://127.0.0.1:1", token="KEY", timeout=3.0).replicas == 1


def test_a_file_of_llamafactory_selects_it(tmp_path: Path) -> None:
    (tmp_path / "lf.yaml").write_text(
        "model_name_or_path: tiny\ninfer_backend: vllm\nvllm_maxlen: 64\nvllm_gpu_util: 0.5\nvllm_max_lora_rank: 8\n"
    )
    found = read(AnswerOptions, [str(tmp_path / "lf.yaml"), "engine.tensor_parallel_size=2"], {})
    assert found.engine == ServedByVLLM(gpu_memory_utilization=0.5, max_lora_rank=8, tensor_parallel_size=2)
    assert found.max_context == 64


def test_an_adapter_of_another_template_is_refused(tmp_path: Path, adapter: Path) -> None:
    path = shutil.copytree(adapter, tmp_path / "adapter")
    Artifact(path, "adapter", "tiny", {"template_sha256": "0" * 64}).record()
    with pytest.raises(GymError, match="another chat template"):
        open_model(ModelSource("tiny", "tiny", adapters={"ann": str(path)}), Limits())


def test_an_adapter_is_asked_with_the_template_beside_it(tmp_path: Path, adapter: Path) -> None:
    path = shutil.copytree(adapter, tmp_path / "adapter")
    (path / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    model = open_model(ModelSource("tiny", "tiny", adapters={"ann": str(path), "ben": str(adapter)}), Limits())
    assert (
        model.words["ann"].render(ASKED) == "a\n" != model.words["ben"].render(ASKED) == model.words[None].render(ASKED)
    )
    assert model.listed("ann").answers.calls is None and model.listed("ben").answers == model.listed().answers
    assert model.stops("ben") == model.stops(None) >= model.stops("ann")

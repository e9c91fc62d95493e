"""Adapters beside one base: each is asked with the template that trained it."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from api_server import served

from gym_core import GymError, execute, load_recipe
from gym_serve.api.command import ApiServing
from gym_serve.contract import Limits, ModelSource, Request, Sampling
from gym_serve.local.config import Local
from gym_serve.local.engine import LocalEngine
from gym_serve.options import read
from gym_testkit.bench import Bench

ROW = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


def trained(folder: Path, base: Path, template: str | dict[str, str] = "default", **adapter: object) -> Path:
    """Return the run of an adapter that was trained with another template than that of its base."""
    (folder / "rows.jsonl").write_text((json.dumps(ROW) + "\n") * 4)
    recipe = {
        "model": str(base),
        "data": {"sources": [str(folder / "rows.jsonl")], "template": template},
        "algorithm": "sft",
        "adapter": {"name": "lora", "rank": 2, "dropout": 0.1, **adapter},
        "train": {"max_steps": 1, "plot": False},
        "output": str(folder / "run"),
    }
    execute(load_recipe(recipe))
    return folder / "run"


def engine_of(name: str, path: Path, **more: object) -> LocalEngine:
    return Local().build(artifacts=[replace(ModelSource(name, str(path)), **more)], limits=Limits())


async def answer(engine: LocalEngine, name: str, tenant: str | None = None) -> tuple[int, list[int]]:
    """Return the length of the prompt, and what is answered."""
    sampling = Sampling(max_tokens=4, temperature=0.0, ignore_eos=True)
    request = Request(name, tenant, messages=ROW["messages"][:1], sampling=sampling)
    return await engine.count(request), [token async for piece in engine.submit(request) for token in piece.tokens]


def test_each_is_asked_as_it_was_trained(tmp_path: Path) -> None:
    base = Bench(tmp_path).model()
    (base / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    run = trained(tmp_path, base)
    beside, alone = engine_of("base", base, adapters={"ann": str(run)}), engine_of("ann", run)

    first: list[tuple[int, list[int]]] = []

    async def use() -> None:
        own = await answer(alone, "ann")
        first.append(own)
        assert await answer(beside, "base", "ann") == own
        assert (await answer(beside, "base"))[0] < own[0]
        await asyncio.gather(beside.close(), alone.close())

    asyncio.run(use())
    (run / "model" / "tokenizer.json").unlink()
    bare = engine_of("base", base, adapters={"ann": str(run)})

    async def asked_again() -> None:
        assert await answer(bare, "base", "ann") == first[0]
        await bare.close()

    asyncio.run(asked_again())
    (run / "model" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(GymError, match="another chat template"):
        engine_of("base", base, adapters={"ann": str(run)})


@pytest.mark.parametrize(
    ("template", "adapter"),
    [("mimo", {}), ("vicuna", {"name": "dora"}), ("mimo", {"modules_to_save": "embed_tokens,lm_head"})],
    ids=["lora", "dora", "modules"],
)
def test_a_file_of_llamafactory_serves_what_another_trained_whatever_it_changes(
    tmp_path: Path, template: str, adapter: dict[str, object]
) -> None:
    base = Bench(tmp_path).model()
    run = trained(tmp_path, base, {"name": "llamafactory", "format": template}, **adapter)
    file = tmp_path / "chat.yaml"
    file.write_text(f"model_name_or_path: {base}\nadapter_name_or_path: {run}\ntemplate: {template}\n")
    beside, alone = read(ApiServing, [str(file)], {}).build(), engine_of("ann", run)

    async def use() -> None:
        assert await answer(beside, base.name) == await answer(alone, "ann")
        await asyncio.gather(beside.close(), alone.close())

    asyncio.run(use())


def test_calls_of_each_are_read_and_forced_by_its_own_template(tmp_path: Path) -> None:
    base = Bench(tmp_path).model()
    (base / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    engine = engine_of("base", base, adapters={"ann": str(trained(tmp_path, base, "qwen"))})
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    body = {"messages": ROW["messages"][:1], "tools": tools, "tool_choice": "required", "max_tokens": 60}
    with served(engine) as server:

        def ask(**more: object) -> str:
            data = json.dumps({**body, **more}).encode()
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(f"{server.url}/v1/chat/completions", data, headers)
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.read().decode()

        message = json.loads(ask(model="base@ann"))["choices"][0]["message"]
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == "f" and json.loads(call["function"]["arguments"])["a"] in (1, 2)
        assert not message["content"] and '"tool_calls"' in ask(model="base@ann", stream=True)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            ask(model="base")
    asyncio.run(engine.close())

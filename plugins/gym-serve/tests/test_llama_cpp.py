"""The engine `llama_cpp` over GGUF files that gym-export wrote: the words, replies and prompts of the model that they are from.

Without the binding all is skipped but what says that it is missing; `nox -s llamacpp` has it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from gym_serve_requests import GREEDY, asking, pieces, text
from hostile_templates import HOSTILE

from gym_core import Artifact, GymError
from gym_data.chat import render
from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_export import GGUF
from gym_serve.batching.prompts import prompt_of
from gym_serve.chat.command import ChatOptions
from gym_serve.contract import Grammar, Limits, ModelSource, Request
from gym_serve.errors import BadRequest, RequestError, TooLong, Unknown
from gym_serve.inference.command import inference
from gym_serve.llama_cpp.config import LlamaCpp
from gym_serve.local.config import Local
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.laws import servers

needs_binding = pytest.mark.skipif(
    find_spec("llama_cpp") is None and "GYM_LLAMACPP" not in os.environ, reason="llama-cpp-python is not installed"
)
ASKS = ["3 + 4?", "Who are you?", "Say the alphabet backwards, please.", "日本語 🙂"]


def exported(model: str | Path, into: Path) -> Path:
    """Return the GGUF file of a model, in fp32."""
    return GGUF(type="f32", runtime="gguf").build().export(Artifact(locate(str(model))), into) / "model.gguf"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported("tiny", tmp_path_factory.mktemp("gguf") / "tiny")


@pytest.fixture(scope="module")
def engine(file: Path) -> Iterator[Any]:
    made = LlamaCpp(cache_type="f32", slots=3).build(artifacts=[ModelSource("tiny", str(file))], limits=Limits())
    yield made
    asyncio.run(made.close())


class Exported(Bench):
    """Its model is the file that was exported from it."""

    def model(self, seed: int = 0) -> Path:
        folder = self.root / f"gguf-{seed}"
        return folder / "model.gguf" if folder.exists() else exported(super().model(seed), folder)


@needs_binding
@pytest.mark.parametrize("law", servers.laws.laws, ids=lambda law: law.text)
def test_it_holds_to_the_laws_of_servers(law: Any, tmp_path: Path) -> None:
    law.check(Brought("servers", "llama_cpp", LlamaCpp), Exported(tmp_path))


@needs_binding
def test_it_says_what_the_model_of_the_file_says(engine: Any) -> None:
    """Greedy and sampled, alone and beside others, with as many log-probabilities as are asked for."""
    local = Local(dtype="float32").build(artifacts=[ModelSource("tiny", "tiny")], limits=Limits())

    async def use() -> None:
        for options in ({}, {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "seed": 3}):
            requests = [asking(ask, **options) for ask in ASKS]
            expected = [await text(local, request) for request in requests]
            assert await asyncio.gather(*(text(engine, request) for request in requests)) == expected
        scored = asking(logprobs=2, max_tokens=4, presence_penalty=0.5, logit_bias={50: 1.0})
        ours, theirs = [
            [each for piece in await pieces(one, scored) for each in piece.logprobs] for one in (engine, local)
        ]
        assert [each.token for each in ours] == [each.token for each in theirs] and len(ours) == 4
        for one, other in zip(ours, theirs, strict=True):
            assert one.utf8 == other.utf8 and one.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert [each.token for each in one.top] == [each.token for each in other.top] and len(one.top) == 2
        await local.close()

    asyncio.run(use())


@needs_binding
def test_prompts_are_those_of_the_tokenizer_that_was_exported(file: Path) -> None:
    """With tools, marks that users write, and a template of another name; special tokens in contents are text."""
    from gym_serve.llama_cpp.library import GGUFModel
    from gym_serve.llama_cpp.vocabulary import GGUFWords

    tokenizer, words = Tokenizer(locate("tiny")), GGUFWords(GGUFModel(file, words_only=True))
    special = tokenizer.special
    assert words.size == 2048 and set(special) <= set(words.special) and words.template_spec.templates
    typed = ["plain", " two  spaces ", f"{special[0]} and {special[-1]}", "日本語 🙂\n\n<tool_call>", "{% if x %}"]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    for content in typed:
        assert words.encode(content) == tokenizer.encode(content)
        request = Request(
            "tiny", messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": content}]
        )
        for each in (request, replace(request, tools=tools), replace(request, messages=None, prompt=content)):
            ours, theirs = (prompt_of(each, one, 2048).tokens for one in (words, tokenizer))
            marked = [one for one in tokenizer.template_spec.further if one in content]
            assert ours == theirs or (
                marked and not {words.token_id(one) for one in marked} & set(ours[len(ours) // 2 :])
            )
            assert words.decode(ours) == tokenizer.decode(theirs)


@needs_binding
def test_a_prompt_that_comes_again_is_computed_once_and_is_the_owners_alone(engine: Any) -> None:
    async def use() -> None:
        request = asking("What is it that I asked? " * 4)
        plain, cached = await text(engine, request), []
        for owner in ("ann", "ann", "ben", None):
            found = await pieces(engine, replace(request, owner=owner))
            assert "".join(piece.text for piece in found) == plain
            cached.append(found[-1].usage.cached_tokens)  # type: ignore[union-attr]
        assert cached[0] == cached[2] == cached[3] == 0 and cached[1] > 16
        several = [
            replace(request, index=index, sampling=replace(GREEDY, temperature=1.0, seed=5)) for index in range(3)
        ]
        alone = [await text(engine, each) for each in several]
        assert await asyncio.gather(*(text(engine, each) for each in several)) == alone and len(set(alone)) > 1

    asyncio.run(use())


@needs_binding
def test_grammars_hold(engine: Any) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"name": {"enum": ["ann", "ben"]}}, "required": ["name"]}
    schema["additionalProperties"] = False
    hot = {"temperature": 1.5, "max_tokens": 80, "seed": 1}

    async def use() -> None:
        found = await text(engine, asking(grammar=Grammar("json_schema", json.dumps(schema)), **hot))
        jsonschema.validate(json.loads(found), schema)
        assert re.fullmatch("[a-f]{3}", await text(engine, asking(grammar=Grammar("regex", "[a-f]{3}"), **hot)))

    asyncio.run(use())


@needs_binding
def test_what_it_does_not_do_is_refused_by_name(engine: Any, file: Path, tmp_path: Path) -> None:
    wrong: list[tuple[Request, type[RequestError]]] = [
        (replace(asking(), echo=True), BadRequest),
        (replace(asking(), tenant="ann"), Unknown),
        (replace(asking(), messages=None, tokens=[5] * 10**5), TooLong),
        (asking(logit_bias={10**9: 1.0}), BadRequest),
    ]

    async def use() -> None:
        for request, error in wrong:
            with pytest.raises(error):
                await pieces(engine, request)
        for asked in (engine.embed("tiny", ["a"]), engine.score("tiny", ["a"])):
            with pytest.raises(BadRequest, match="no model that can"):
                await asked

    asyncio.run(use())
    assert not {"echo", "embed", "score", "tenants"} & engine.supports
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(file.read_bytes()[:50_000])
    sources = {
        "does not load it": ModelSource("a", str(broken)),
        "no such file": ModelSource("a", str(tmp_path / "none.gguf")),
        "has no GGUF file": ModelSource("a", str(tmp_path / "..")),
        "without variants": ModelSource("a", str(file), adapters={"x": "y"}),
    }
    for why, source in sources.items():
        with pytest.raises(GymError, match=why):
            LlamaCpp().build(artifacts=[source], limits=Limits())


@needs_binding
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_template_in_a_file_hurts_nobody(
    file: Path, engine: Any, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error of each request that it lays out, within its time; prompts without it are answered as ever."""
    monkeypatch.setattr(render, "SECONDS", 0.5)
    own = Tokenizer(locate("tiny")).templates["default"].encode()
    sign, held, evil = tmp_path / "sign", file.read_bytes(), HOSTILE[what].replace("SIGN", str(tmp_path / "sign"))
    assert held.count(own) == 1
    (tmp_path / "evil.gguf").write_bytes(held.replace(own, evil.encode().ljust(len(own))))
    began = time.monotonic()
    made = LlamaCpp(slots=2).build(artifacts=[ModelSource("tiny", str(tmp_path / "evil.gguf"))], limits=Limits())

    async def use() -> None:
        for _ in range(2):
            with pytest.raises(BadRequest, match="template"):
                await pieces(made, asking())
        plain = replace(asking(), messages=None, prompt="3 + 4 =")
        assert await text(made, plain) == await text(engine, plain)
        await made.close()

    asyncio.run(use())
    assert time.monotonic() - began < 20 and not sign.exists()


@needs_binding
def test_the_commands_take_a_file_and_a_folder_of_one(file: Path, tmp_path: Path) -> None:
    for model, name in ((file, "tiny-model"), (file.parent, "tiny")):
        engine = ChatOptions(models=(str(model),), max_context=64).build()
        (listed,) = engine.models()
        assert listed.name.endswith(name) and listed.context_length == 64 and listed.answers is not None
        asyncio.run(engine.close())
    given, output = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    given.write_text("".join(json.dumps({"instruction": ask}) + "\n" for ask in ASKS))
    words = [str(file), "--input", str(given), "--output", str(output), "max_tokens=4"]
    done = CliRunner().invoke(inference, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["usage"]["completion_tokens"] for line in output.read_text().splitlines()] == [4] * len(
        ASKS
    )


@pytest.mark.skipif(find_spec("llama_cpp") is not None, reason="llama-cpp-python is installed")
def test_without_the_binding_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(GymError, match="llama-cpp-python, which is not installed"):
        ChatOptions(models=(str(tmp_path / "model.gguf"),)).build()

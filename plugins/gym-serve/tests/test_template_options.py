"""What clients tell a chat template: whatever it reads reaches it, and what it does not read is refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from api_server import served

from gym_core.cli import run
from gym_serve.chat.session import Session
from gym_serve.contract import Limits, ModelSource, Sampling
from gym_serve.local.config import Local
from gym_serve.template_options import TemplateSettings, template_options

TEMPLATE = """{{ mode }}/{{ reasoning_effort | default('medium') }}/{{ count + 1 if count is integer else flag }}
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if deep %}<think>
{% endif %}{% endif %}"""
ASKED = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    file = tmp_path_factory.mktemp("template") / "own.jinja"
    file.write_text(TEMPLATE)
    source = ModelSource("tiny", "tiny", template=str(file))
    engine = Local(dtype="float32").build(artifacts=[source], limits=Limits())
    seen: list[Any] = []
    submit = engine.submit
    engine.submit = lambda request: (seen.append(request), submit(request))[1]  # type: ignore[method-assign]
    with served(engine) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
        yield SimpleNamespace(client=client, engine=engine, seen=seen, port=server.port)


def chat(at: SimpleNamespace, **given: Any) -> Any:
    return at.client.chat.completions.create(model="tiny", messages=ASKED, max_tokens=2, temperature=0, **given)


def kwargs(**given: Any) -> dict[str, Any]:
    return {"extra_body": {"chat_template_kwargs": given}}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (kwargs(mode="brief", flag=False), {"mode": "brief", "flag": False}),
        (kwargs(count=3, mode=None, flag=0.5), {"count": 3, "flag": 0.5}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        (kwargs(reasoning_effort="odd", enable_thinking=False), {"reasoning_effort": "odd"}),
    ],
)
def test_plain_values_that_the_template_reads_reach_it(at: SimpleNamespace, given: Any, told: Any) -> None:
    assert chat(at, **given).usage.completion_tokens and at.seen[-1].template_options == told


def test_responses_take_them_too(at: SimpleNamespace) -> None:
    found = at.client.responses.create(model="tiny", input="a", max_output_tokens=2, reasoning={"effort": "low"})
    assert at.seen[-1].template_options == {"reasoning_effort": "low"} and found.reasoning.effort == "low"
    at.client.responses.create(model="tiny", input="a", max_output_tokens=2, **kwargs(mode="x"))
    assert at.seen[-1].template_options == {"mode": "x"}


@pytest.mark.parametrize(
    ("given", "key", "why"),
    [
        (kwargs(moode="x"), "chat_template_kwargs.moode", "`count`, `deep`, `flag`, `mode`, `reasoning_effort`"),
        (kwargs(tools="x"), "chat_template_kwargs.tools", "does not read"),
        (kwargs(bos_token="x"), "chat_template_kwargs.bos_token", "does not read"),
        (kwargs(enable_thinking=True), "chat_template_kwargs.enable_thinking", "does not read"),
        (kwargs(mode=["x"]), "chat_template_kwargs.mode", "plain"),
        (kwargs(mode={"a": 1}), "chat_template_kwargs.mode", "plain"),
        (kwargs(mode="x" * 9000), "chat_template_kwargs.mode", "8,192"),
        ({"reasoning_effort": "odd"}, "reasoning_effort", "'high'"),
        ({"reasoning_effort": "low", **kwargs(reasoning_effort="high")}, "reasoning_effort", "leave one"),
    ],
)
def test_others_are_refused_by_name(at: SimpleNamespace, given: Any, key: str, why: str) -> None:
    with pytest.raises(openai.BadRequestError, match=why) as caught:
        chat(at, **given)
    assert caught.value.param == key


def test_responses_name_their_own_field(at: SimpleNamespace) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        at.client.responses.create(model="tiny", input="a", reasoning={"effort": "huge", "summary": "auto"})
    assert caught.value.param == "reasoning.effort"


def test_special_tokens_in_a_value_are_text(at: SimpleNamespace) -> None:
    """Whoever asks writes no turn of the template."""
    chat(at, **kwargs(mode="<|im_end|>"))
    engine, words = at.engine, at.engine.served["tiny"].tokenizer
    count = asyncio.run(engine.count(at.seen[-1]))
    plain = asyncio.run(engine.count(replace(at.seen[-1], template_options={"mode": ""})))
    assert count - plain == len(words.encode("<|im_end|>")) > 1


def test_a_value_may_have_the_prompt_begin_a_thought(at: SimpleNamespace) -> None:
    """What is written then is a thought until its mark, which is told apart for this request alone."""
    for deep in (True, False):
        found = chat(at, **kwargs(deep=deep))
        message = found.choices[0].message
        assert found.usage.completion_tokens_details.reasoning_tokens == 2 * deep
        assert bool(getattr(message, "reasoning_content", "")) == deep and bool(message.content) != deep


def test_commands_tell_templates_the_same(
    at: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gym chat` and `gym inference` check the same options, and requests outweigh what the server says."""
    told = TemplateSettings(chat_template_kwargs={"mode": "brief", "flag": None, "count": 2})

    async def said() -> list[str]:
        talk = Session(at.engine, Sampling(max_tokens=2, temperature=0.0), told=told)
        return [delta.content async for delta in talk.say("a")]

    assert asyncio.run(said()) and at.seen[-1].template_options == {"mode": "brief", "count": 2}
    model = at.engine.models()[0]
    assert template_options(model, {"mode": "x"}, "low", told) == {"mode": "x", "count": 2, "reasoning_effort": "low"}
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    files = ["--input", str(tmp_path / "rows.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    for command in (["chat", "tiny"], ["inference", "tiny", *files]):
        assert run([*command, "chat_template_kwargs.moode=x"]) == 2
        assert "chat_template_kwargs.moode: the chat template of this model does not read" in capsys.readouterr().err

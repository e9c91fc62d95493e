"""What clients send beside what they ask: fields that change no reply are taken, and what would change one is refused by name."""

from __future__ import annotations

from dataclasses import replace

import openai
import pytest
from api_server import served
from parrot import FORMAT, Parrot, ParrotEngine

from gym_serve import Limits, ModelSource

CHAT, RESPONSES, TEXT = "/chat/completions", "/responses", "/completions"
BODIES = {CHAT: {"messages": [{"role": "user", "content": "a"}]}, RESPONSES: {"input": "a"}, TEXT: {"prompt": "a"}}


class Always(ParrotEngine):
    """One whose template begins a thought whatever it is told."""

    def models(self):
        answers = replace(FORMAT, begins_thinking=True)
        return [replace(model, template_options=frozenset(), answers=answers) for model in super().models()]


@pytest.fixture(scope="module")
def server():
    with served(ParrotEngine(Parrot(), [ModelSource("parrot", "nowhere")], Limits())) as found:
        yield found


def posted(server, path: str, **body: object) -> dict:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
    return client.post(path, body={"model": "parrot", **BODIES[path], **body}, cast_to=dict)  # type: ignore[type-var]


def refused(server, path: str, **body: object) -> tuple[str, str]:
    with pytest.raises(openai.BadRequestError) as caught:
        posted(server, path, **body)
    return caught.value.param, caught.value.message


def test_no_effort_is_no_thought(server):
    posted(server, CHAT, reasoning_effort="none")
    assert server.engine.seen[-1].template_options == {"enable_thinking": False}
    with served(Always(Parrot(), [ModelSource("parrot", "nowhere")], Limits())) as other:
        assert refused(other, CHAT, reasoning_effort="none")[0] == "reasoning_effort"
        kwargs = {"chat_template_kwargs": {"enable_thinking": False}}
        assert refused(other, CHAT, **kwargs)[0] == "chat_template_kwargs.enable_thinking"

"""What clients send beside what they ask: fields that change no reply are taken, and what would change one is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace

import openai
import pytest
from api_server import served
from parrot import FORMAT, Parrot, ParrotEngine

from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_serve import Limits, ModelSource
from gym_serve.batching.prompts import prompt_of
from gym_serve.contract import Request
from gym_serve.errors import BadRequest

CHAT, RESPONSES, TEXT, MESSAGES = "/chat/completions", "/responses", "/completions", "/messages"
ASKED = {"messages": [{"role": "user", "content": "a"}]}
BODIES = {CHAT: ASKED, RESPONSES: {"input": "a"}, TEXT: {"prompt": "a"}}
CODEX = {
    "instructions": "You code.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Ask first."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a b"}]},
    ],
    "tools": [{"type": "function", "name": "shell", "strict": False, "parameters": {"type": "object"}}],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "a",
    "text": {"verbosity": "medium"},
}


USED = {"name": "f", "input_schema": {"type": "object"}}


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
    return client.post(
        path, body={"model": "parrot", **BODIES.get(path, ASKED | {"max_tokens": 9}), **body}, cast_to=dict
    )  # type: ignore[type-var]


def refused(server, path: str, **body: object) -> tuple[str, str]:
    with pytest.raises(openai.BadRequestError) as caught:
        posted(server, path, **body)
    return caught.value.param, caught.value.message


@pytest.mark.parametrize(
    ("path", "given"),
    [
        *((path, {"store": True}) for path in BODIES),
        *((path, {"service_tier": "flex"}) for path in BODIES),
        *((path, {"prompt_cache_retention": "24h", "prompt_cache_options": {}}) for path in BODIES),
        *((path, {"user": "a", "safety_identifier": "b", "metadata": {"c": "d"}}) for path in BODIES),
        *((path, {"functions": None, "of_tomorrow": None}) for path in BODIES),
        (CHAT, {"verbosity": "medium"}),
        (CHAT, {"prediction": {"type": "content", "content": "a"}}),
        (CHAT, {"messages": [{"role": "assistant", "content": "a", "audio": None, "of_tomorrow": None}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}]}),
        (CHAT, {"reasoning_effort": "none"}),
        (TEXT, {"best_of": 1, "suffix": None}),
        (RESPONSES, {"background": False, "previous_response_id": None, "prompt": None, "max_tool_calls": 3}),
        (RESPONSES, {"stream_options": {"include_obfuscation": False}, "include": []}),
        (RESPONSES, {"reasoning": {"effort": "none", "summary": "detailed"}}),
        (RESPONSES, {"input": [{"role": "user", "content": "a"}, {"type": "reasoning", "encrypted_content": None}]}),
        (RESPONSES, CODEX),
        (
            RESPONSES,
            {"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "a", "parsed": {}}]}]},
        ),
        (MESSAGES, {"thinking": {"type": "adaptive"}, "output_config": {}, "cache_control": {}, "speed": "standard"}),
        (MESSAGES, {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}),
        (MESSAGES, {"tools": [USED | {"strict": True, "eager_input_streaming": True, "allowed_callers": ["direct"]}]}),
    ],
)
def test_what_changes_no_reply_is_taken(server, path, given):
    assert posted(server, path, **given)["model"] == "parrot"


@pytest.mark.parametrize(
    ("path", "given", "param", "why"),
    [
        (CHAT, {"verbosity": "low"}, "verbosity", "leave it out"),
        (CHAT, {"functions": []}, "functions", "`tools`"),
        (CHAT, {"of_tomorrow": 0}, "of_tomorrow", "no such field"),
        (TEXT, {"best_of": 2}, "best_of", "use `n`"),
        (RESPONSES, {"background": True}, "background", "nothing is stored"),
        (RESPONSES, {"previous_response_id": "a"}, "previous_response_id", "nothing is stored"),
        (RESPONSES, {"truncation": "auto"}, "truncation", "disabled"),
        (RESPONSES, {"include": ["odd"]}, "include[0]", "Input should be"),
        (RESPONSES, {"stop": ["a"]}, "stop", "no such field"),
        (RESPONSES, {"input": [{"type": "odd", "call_id": "a"}]}, "input[0]", "function_call_output"),
        (RESPONSES, {"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "required"),
        (
            RESPONSES,
            {"input": [{"type": "reasoning", "encrypted_content": "a"}]},
            "input[0].encrypted_content",
            "leave it out",
        ),
        (RESPONSES, CODEX | {"top_logprobs": 2}, "top_logprobs", "beside tools"),
        (
            RESPONSES,
            {"tools": [{"type": "web_search", "filters": {}}]},
            "tools[0]",
            "of type `web_search`: leave it out",
        ),
        (CHAT, {"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0]", "of type `custom`"),
        (CHAT, {"reasoning_effort": "low"}, "reasoning_effort", "does not read"),
        (
            CHAT,
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "reasoning_effort",
            "chat_template_kwargs.enable_thinking",
        ),
    ],
)
def test_what_would_change_it_is_refused_by_name(server, path, given, param, why):
    found = refused(server, path, **given)
    assert found[0] == param and why in found[1]


def test_no_effort_is_no_thought(server):
    posted(server, CHAT, reasoning_effort="none")
    assert server.engine.seen[-1].template_options == {"enable_thinking": False}
    with served(Always(Parrot(), [ModelSource("parrot", "nowhere")], Limits())) as other:
        assert refused(other, CHAT, reasoning_effort="none")[0] == "reasoning_effort"
        kwargs = {"chat_template_kwargs": {"enable_thinking": False}}
        assert refused(other, CHAT, **kwargs)[0] == "chat_template_kwargs.enable_thinking"


def test_instructions_come_before_what_a_developer_says(server):
    later = [*CODEX["input"], {"role": "developer", "content": "c"}]
    posted(server, RESPONSES, **CODEX | {"input": later})
    told = [(each["role"], each["content"]) for each in server.engine.seen[-1].messages]
    assert told == [("system", "You code."), ("system", "Ask first."), ("user", "a b"), ("system", "c")]


EACH = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
FIRST = "{% for m in messages %}{% if loop.first or m.role != 'system' %}[{{ m.role }}] {{ m.content }}\n{% endif %}{% endfor %}"
STRICT = EACH.replace(
    "[", "{% if m.role == 'system' and not loop.first %}{{ raise_exception('one alone') }}{% endif %}[", 1
)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (EACH, "[system] a<|im_end|>\n[system] \n[system] c\n"),
        (FIRST, JOINED := "[system] a<|im_end|>\n\nc\n"),
        (STRICT, JOINED),
    ],
)
def test_what_the_system_says_first_is_one_message_where_the_template_takes_no_more(template, said):
    """Whoever splits it, as many clients do, has all of it heard; what it says later is left to the template."""
    words = Tokenizer(locate("tiny"), template)
    system = [{"role": "system", "content": each} for each in ("a<|im_end|>", "", "c")]
    user, answer = {"role": "user", "content": "u"}, {"role": "assistant", "content": "x"}

    def text(*messages, **fields):
        return words.decode(prompt_of(Request("m", messages=messages, **fields), words, 2048).tokens)

    assert text(*system, user) == f"{said}[user] u\n"
    assert text(*system, user, answer, continue_final_message=True) == f"{said}[user] u\n[assistant] x"
    assert text(system[0], user) == "[system] a<|im_end|>\n[user] u\n"
    if template is STRICT:
        with pytest.raises(BadRequest, match="one alone"):
            text(*system, user, system[0])


def test_thoughts_are_read_by_both_of_their_names(server):
    """vLLM calls them `reasoning`, and DeepSeek, SGLang and llama.cpp `reasoning_content`; some clients send both."""
    for given in ({"reasoning": "t"}, {"reasoning_content": "t"}, {"reasoning": "t", "reasoning_content": "t"}):
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", **given},
            {"role": "user", "content": "c"},
        ]
        posted(server, CHAT, messages=messages)
        told = server.engine.seen[-1].messages[1]
        assert told == {"role": "assistant", "content": "b", "reasoning_content": "t"}


@pytest.mark.parametrize("asked", [{"top_logprobs": 1}, {"include": ["message.output_text.logprobs"]}])
def test_log_probabilities_of_responses_are_those_of_the_text(server, asked):
    """Thoughts and their marks are no part of it; streams tell the same."""
    given = {"input": "think a b c", "temperature": 0, **asked}
    thought, message = posted(server, RESPONSES, **given)["output"]
    found = message["content"][0]["logprobs"]
    assert thought["type"] == "reasoning" and "".join(each["token"] for each in found).strip() == "a b c"
    assert [len(each["top_logprobs"]) for each in found] == [asked.get("top_logprobs", 0)] * 3
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
    events = list(client.responses.create(model="parrot", stream=True, **given))
    deltas = [each for event in events if event.type == "response.output_text.delta" for each in event.logprobs]
    done = next(event for event in events if event.type == "response.output_text.done")
    assert (
        [each.token for each in deltas] == [each.token for each in done.logprobs] == [each["token"] for each in found]
    )
    assert json.loads(events[-1].response.output[1].model_dump_json())["content"][0]["logprobs"][0]["token"] == "a"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"output_config": {"effort": "low"}}, "output_config.effort: "),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format: "),
        ({"context_management": {"edits": [{"type": "odd"}]}}, "context_management.edits[0].type: "),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0]: functions with a schema"),
        ({"tools": [USED | {"input_examples": [{}]}]}, "`tools[0].input_examples` is not supported"),
        ({"speed": "fast"}, "speed: "),
    ],
)
def test_what_would_change_a_message_is_refused_by_name(server, given, named):
    with pytest.raises(openai.BadRequestError) as caught:
        posted(server, MESSAGES, **given)
    assert caught.value.body["message"].startswith(named)

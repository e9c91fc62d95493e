"""What clients of others find at `gym api`, by feature: each case is run, and a table in `docs/serving.md` says what came.

`GYM_WRITE=1 pytest plugins/gym-serve/tests/test_conformance.py` writes the table anew.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs/serving.md"
BEGIN, END = "<!-- conformance -->\n", "<!-- /conformance -->"
ASKED = [{"role": "user", "content": "What is 3 + 4?"}]
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOL = {"type": "function", "function": WEATHER}
SCHEMA = {
    "title": "answer",
    "type": "object",
    "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}, "sure": {"type": "boolean"}},
    "required": ["sum", "sure"],
    "additionalProperties": False,
}
CLIENTS = ("openai", "langchain", "anthropic")


@dataclass(frozen=True)
class At:
    """Where to ask."""

    url: str
    model: str
    key: str = "any"

    def openai(self):
        import openai

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)

    def langchain(self, **options):
        from langchain_openai import ChatOpenAI

        options = {"temperature": 0, "max_tokens": 64, **options}
        return ChatOpenAI(base_url=f"{self.url}/v1", api_key=self.key, model=self.model, max_retries=0, **options)

    def anthropic(self):
        import anthropic

        return anthropic.Anthropic(base_url=self.url, api_key=self.key, max_retries=0)

    def chat(self, **options):
        options = {"messages": ASKED, "temperature": 0, "max_tokens": 64, **options}
        return self.openai().chat.completions.create(model=self.model, **options)

    def message(self, **options):
        options = {"messages": ASKED, "extra_body": {"temperature": 0}, "max_tokens": 64, **options}
        return self.anthropic().messages.create(model=self.model, **options)


Case = Callable[[At], Any]
CASES: dict[str, dict[str, Case]] = {}


def case(feature: str, client: str) -> Callable[[Case], Case]:
    """Add a case."""

    def add(function: Case) -> Case:
        CASES.setdefault(feature, {})[client] = function
        return function

    return add


def text_of(at: At, **options) -> str:
    return at.chat(**options).choices[0].message.content


@case("chat", "openai")
def _(at):
    reply = at.chat()
    assert reply.choices[0].message.role == "assistant" and reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop" and reply.object == "chat.completion"


@case("chat", "langchain")
def _(at):
    assert at.langchain().invoke("What is 3 + 4?").content == text_of(at)


@case("chat", "anthropic")
def _(at):
    reply = at.message()
    assert reply.content[0].text == text_of(at) and reply.stop_reason == "end_turn"


@case("several turns, system prompt", "openai")
def _(at):
    turns = [{"role": "system", "content": [{"type": "text", "text": "Be short."}]}, *ASKED]
    turns += [{"role": "assistant", "content": "7"}, {"role": "user", "content": "And 4 + 4?"}]
    assert text_of(at, messages=turns)


@case("several turns, system prompt", "langchain")
def _(at):
    assert at.langchain().invoke([("system", "Be short."), ("user", "3 + 4"), ("ai", "7"), ("user", "4 + 4")]).content


@case("several turns, system prompt", "anthropic")
def _(at):
    turns = [
        *ASKED,
        {"role": "assistant", "content": [{"type": "text", "text": "7"}]},
        {"role": "user", "content": "And 4 + 4?"},
    ]
    assert at.message(messages=turns, system="Be short.").content[0].text


@case("stream", "openai")
def _(at):
    chunks = list(at.chat(stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text_of(at) and len(chunks) > 3
    assert chunks[-2].choices[0].finish_reason == "stop" and chunks[-1].usage.completion_tokens > 0


@case("stream", "langchain")
def _(at):
    chunks = [chunk.content for chunk in at.langchain().stream("What is 3 + 4?")]
    assert "".join(chunks) == text_of(at) and len(chunks) > 3


@case("stream", "anthropic")
def _(at):
    options = {"messages": ASKED, "extra_body": {"temperature": 0}, "max_tokens": 64}
    with at.anthropic().messages.stream(model=at.model, **options) as stream:
        assert "".join(stream.text_stream) == text_of(at)
        assert stream.get_final_message().usage.output_tokens > 0


@case("tool calls, required", "openai")
def _(at):
    choice = at.chat(tools=[TOOL], tool_choice="required").choices[0]
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and set(json.loads(call.function.arguments)) == {"city"}


@case("tool calls, required", "langchain")
def _(at):
    (call,) = at.langchain().bind_tools([TOOL], tool_choice="required").invoke("Weather in Paris?").tool_calls
    assert call["name"] == "get_weather" and set(call["args"]) == {"city"}


@case("tool calls, required", "anthropic")
def _(at):
    tools = [{"name": "get_weather", "input_schema": WEATHER["parameters"]}]
    reply = at.message(tools=tools, tool_choice={"type": "any"})
    assert reply.stop_reason == "tool_use" and set(reply.content[-1].input) == {"city"}


@case("tool calls, one that is named", "openai")
def _(at):
    other = {
        "type": "function",
        "function": {
            "name": "get_time",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    }
    named = {"type": "function", "function": {"name": "get_time"}}
    chunks = list(at.chat(tools=[TOOL, other], tool_choice=named, stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.function.name for call in calls] == ["get_time"] and calls[0].index == 0 and calls[0].id


@case("tool calls, one that is named", "langchain")
def _(at):
    bound = at.langchain().bind_tools([TOOL], tool_choice="get_weather")
    chunks = list(bound.stream("Weather in Paris?"))
    assert [call["name"] for chunk in chunks for call in chunk.tool_call_chunks] == ["get_weather"]


@case("tool calls, one that is named", "anthropic")
def _(at):
    tools = [{"name": "get_weather", "input_schema": WEATHER["parameters"]}]
    options = {"messages": ASKED, "extra_body": {"temperature": 0}, "max_tokens": 64, "tools": tools}
    with at.anthropic().messages.stream(
        model=at.model, tool_choice={"type": "tool", "name": "get_weather"}, **options
    ) as stream:
        assert set(stream.get_final_message().content[-1].input) == {"city"}


@case("tools: `none`, and results", "openai")
def _(at):
    assert not at.chat(tools=[TOOL], tool_choice="none").choices[0].message.tool_calls
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    turns = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert at.chat(messages=[*turns, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}], tools=[TOOL])


@case("tools: `none`, and results", "langchain")
def _(at):
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    call = {"name": "get_weather", "args": {"city": "Rome"}, "id": "call_1", "type": "tool_call"}
    turns = [HumanMessage("Weather?"), AIMessage("", tool_calls=[call]), ToolMessage("sunny", tool_call_id="call_1")]
    assert at.langchain().bind_tools([TOOL]).invoke(turns) is not None


@case("tools: `none`, and results", "anthropic")
def _(at):
    tools = [{"name": "get_weather", "input_schema": WEATHER["parameters"]}]
    used = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "sunny"}
    turns = [*ASKED, {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    assert at.message(messages=turns, tools=tools, tool_choice={"type": "none"}).content


@case("JSON schema", "openai")
def _(at):
    format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    from pydantic import create_model

    found = json.loads(text_of(at, response_format=format))
    assert set(found) == {"sum", "sure"} and 0 <= found["sum"] <= 99
    asked = {"model": at.model, "max_tokens": 64, "temperature": 0}
    answer = at.openai().chat.completions.parse(
        messages=ASKED, response_format=create_model("Answer", sure=(bool, ...)), **asked
    )
    message = answer.choices[0].message
    assert isinstance(message.parsed.sure, bool)
    assert text_of(at, messages=[*ASKED, message.model_dump(warnings=False), *ASKED])  # goes back as the client made it


@case("JSON schema", "langchain")
def _(at):
    found = at.langchain().with_structured_output(SCHEMA, method="json_schema").invoke("3 + 4?")
    assert set(found) == {"sum", "sure"}


@case("JSON schema", "anthropic")
def _(at):
    reply = at.message(output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert set(json.loads(reply.content[0].text)) == {"sum", "sure"}


@case("choice or pattern (`structured_outputs`)", "openai")
def _(at):
    import openai
    import pytest

    def shaped(**given) -> str:
        return text_of(at, temperature=1, seed=1, extra_body={"structured_outputs": given})

    texts = ["yes (*.[]{}+?|^$\\", "no-ø\n", "a b"]
    assert shaped(choice=texts) in texts and re.fullmatch("[a-f]{3}-[0-9]", shaped(regex="[a-f]{3}-[0-9]"))
    assert set(json.loads(shaped(json=SCHEMA))) == {"sum", "sure"}
    made = at.openai().completions.create(
        model=at.model, prompt="a", temperature=1, extra_body={"structured_outputs": {"choice": texts}}
    )
    assert made.choices[0].text in texts
    for wrong in ({}, {"regex": "a", "choice": ["b"]}, {"choice": []}, {"regex": "("}):
        with pytest.raises(openai.BadRequestError) as caught:
            shaped(**wrong)
        assert caught.value.param.startswith("structured_outputs")


@case("JSON object", "openai")
def _(at):
    reply = at.chat(response_format={"type": "json_object"}, max_tokens=200).choices[0]
    assert reply.finish_reason == "length" or isinstance(json.loads(reply.message.content), dict)


@case("JSON object", "langchain")
def _(at):
    import openai

    try:
        assert at.langchain().bind(response_format={"type": "json_object"}).invoke("3 + 4?").content.lstrip()[0] == "{"
    except openai.LengthFinishReasonError as cut:  # what the client makes of an object that is not whole
        assert cut.completion.choices[0].message.content.lstrip()[0] == "{"


@case("log-probabilities", "openai")
def _(at):
    content = at.chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
    streamed = [
        token
        for chunk in at.chat(logprobs=True, top_logprobs=3, stream=True)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert [token.token for token in content] == [token.token for token in streamed]
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3 and token.bytes is not None
        assert math.isclose(token.logprob, max(other.logprob for other in token.top_logprobs), abs_tol=1e-6)


@case("log-probabilities", "langchain")
def _(at):
    assert at.langchain(logprobs=True).invoke("3 + 4?").response_metadata["logprobs"]["content"]


@case("several replies (`n`)", "openai")
def _(at):
    reply = at.chat(n=3, temperature=1, seed=5)
    assert [choice.index for choice in reply.choices] == [0, 1, 2] and reply.usage.completion_tokens > 0
    chunks = list(at.chat(n=3, temperature=1, seed=5, stream=True))
    for index, choice in enumerate(reply.choices):
        parts = [c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == index]
        assert "".join(parts) == choice.message.content


@case("several replies (`n`)", "langchain")
def _(at):
    from langchain_core.messages import HumanMessage

    assert len(at.langchain(n=2, temperature=1).generate([[HumanMessage("3 + 4?")]]).generations[0]) == 2


@case("`seed`", "openai")
def _(at):
    texts = [text_of(at, temperature=1, seed=seed) for seed in (1, 1, *range(2, 9))]
    assert texts[0] == texts[1] and len(set(texts)) > 1


@case("`seed`", "langchain")
def _(at):
    assert len({at.langchain(temperature=1, seed=1).invoke("3 + 4?").content for _ in range(2)}) == 1


@case("stop strings", "openai")
def _(at):
    whole = text_of(at)
    stop = whole[len(whole) // 2 :][:2]
    choice = at.chat(stop=[stop]).choices[0]
    assert choice.message.content == whole[: whole.index(stop)] and choice.finish_reason == "stop"


@case("stop strings", "langchain")
def _(at):
    whole = text_of(at)
    stop = whole[len(whole) // 2 :][:2]
    assert at.langchain().invoke("What is 3 + 4?", stop=[stop]).content == whole[: whole.index(stop)]


@case("stop strings", "anthropic")
def _(at):
    whole = text_of(at)
    stop = whole[len(whole) // 2 :][:2]
    reply = at.message(stop_sequences=[stop])
    shown = [block.text for block in reply.content]
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", stop)
    assert "".join(shown) == whole[: whole.index(stop)]


@case("`min_tokens`, `bad_words`, `include_stop_str_in_output`", "openai")
def _(at):
    assert at.chat(extra_body={"min_tokens": 40}).usage.completion_tokens >= 40
    whole = text_of(at)
    assert whole.split()[0] not in text_of(at, extra_body={"bad_words": whole.split()[:1]}).split()
    stop = whole[len(whole) // 2 :][:2]
    shown = text_of(at, stop=[stop], extra_body={"include_stop_str_in_output": True})
    assert shown == whole[: whole.index(stop) + len(stop)]


@case("options of the chat template", "openai")
def _(at):
    import openai
    import pytest

    reply = at.chat(extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0
    for given, key in (
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"extra_body": {"chat_template_kwargs": {"odd": 1}}}, "chat_template_kwargs.odd"),
    ):
        with pytest.raises(openai.BadRequestError, match="does not read") as caught:
            at.chat(**given)
        assert caught.value.param == key


@case("length and usage", "openai")
def _(at):
    reply = at.chat(max_completion_tokens=1, max_tokens=None)
    assert reply.choices[0].finish_reason == "length" and reply.usage.completion_tokens == 1
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 1


@case("length and usage", "langchain")
def _(at):
    used = at.langchain(max_tokens=2).invoke("3 + 4?").usage_metadata
    assert used["output_tokens"] == 2 and used["total_tokens"] == used["input_tokens"] + 2


@case("length and usage", "anthropic")
def _(at):
    reply = at.message(max_tokens=1)
    counted = at.anthropic().messages.count_tokens(model=at.model, messages=ASKED).input_tokens
    assert reply.stop_reason == "max_tokens" and reply.usage.output_tokens == 1
    assert reply.usage.input_tokens + reply.usage.cache_read_input_tokens == counted


@case("completions", "openai")
def _(at):
    made = at.openai().completions.create(
        model=at.model, prompt=["3 + 4 =", "4 + 4 ="], max_tokens=3, temperature=0, logprobs=2
    )
    assert [choice.index for choice in made.choices] == [0, 1] and len(made.choices[0].logprobs.tokens) <= 3
    streamed = at.openai().completions.create(
        model=at.model, prompt="3 + 4 =", max_tokens=3, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == made.choices[0].text


@case("scores of a prompt (`echo`, `max_tokens` 0)", "openai")
def _(at):
    made = at.openai().completions.create(model=at.model, prompt="3 + 4 = 7", max_tokens=0, echo=True, logprobs=1)
    found = made.choices[0]
    assert found.text.endswith("3 + 4 = 7") and made.usage.completion_tokens == 0
    assert len(found.logprobs.token_logprobs) == made.usage.prompt_tokens == len(found.logprobs.text_offset)


@case("completions", "langchain")
def _(at):
    from langchain_openai import OpenAI

    model = OpenAI(base_url=f"{at.url}/v1", api_key=at.key, model=at.model, temperature=0, max_tokens=3, max_retries=0)
    assert isinstance(model.invoke("3 + 4 ="), str)


@case("responses", "openai")
def _(at):
    client = at.openai()
    reply = client.responses.create(model=at.model, input="What is 3 + 4?", temperature=0, max_output_tokens=64)
    counted = client.responses.input_tokens.count(model=at.model, input="What is 3 + 4?")
    assert (counted.input_tokens, counted.object) == (reply.usage.input_tokens, "response.input_tokens")
    assert reply.output_text == text_of(at) and reply.status == "completed"
    with client.responses.stream(model=at.model, input="What is 3 + 4?", temperature=0, max_output_tokens=64) as stream:
        assert (
            "".join(event.delta for event in stream if event.type == "response.output_text.delta") == reply.output_text
        )
        assert stream.get_final_response().usage.output_tokens == reply.usage.output_tokens


@case("responses", "langchain")
def _(at):
    assert at.langchain(use_responses_api=True).invoke("What is 3 + 4?").text == text_of(at)


@case("models", "openai")
def _(at):
    assert at.model in [model.id for model in at.openai().models.list()]
    assert at.openai().models.retrieve(at.model).id == at.model


@case("models", "anthropic")
def _(at):
    assert at.model in [model.id for model in at.anthropic().models.list()]


@case("embeddings", "openai")
def _(at):
    one, other = (vector.embedding for vector in at.openai().embeddings.create(model=at.model, input=["a", "b"]).data)
    assert math.isclose(sum(value * value for value in one), 1.0, rel_tol=1e-4) and one != other


@case("embeddings of tokens", "openai")
def _(at):
    found = at.openai().embeddings.create(model=at.model, input=[[1, 2, 3], [4]])
    assert len(found.data) == 2 and found.usage.prompt_tokens == 4


@case("embeddings", "langchain")
def _(at):
    from langchain_openai import OpenAIEmbeddings

    model = OpenAIEmbeddings(
        base_url=f"{at.url}/v1", api_key=at.key, model=at.model, check_embedding_ctx_length=False, max_retries=0
    )
    assert len(model.embed_documents(["a", "b"])) == 2


@case("errors", "openai")
def _(at):
    import openai
    import pytest

    with pytest.raises(openai.NotFoundError) as caught:
        at.openai().chat.completions.create(model="nobody", messages=ASKED)
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    with pytest.raises(openai.BadRequestError) as caught:
        at.chat(extra_body={"max_tokens": -1})
    assert caught.value.param == "max_tokens" and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as caught:
        at.chat(extra_body={"colour": "red"})
    assert caught.value.param == "colour"


@case("errors", "langchain")
def _(at):
    import openai
    import pytest
    from langchain_core.exceptions import ContextOverflowError

    with pytest.raises(openai.BadRequestError, match="colour"):
        at.langchain(extra_body={"colour": "red"}).invoke("a")
    with pytest.raises(ContextOverflowError):  # which agents answer by telling less
        at.langchain().invoke("a " * 5000)


@case("errors", "anthropic")
def _(at):
    import anthropic
    import pytest

    with pytest.raises(anthropic.NotFoundError) as caught:
        at.anthropic().messages.create(model="nobody", messages=ASKED, max_tokens=3)
    assert caught.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="colour"):
        at.message(extra_body={"colour": "red"})


def outcome(run: Case | None, at: At) -> str:
    """Return what the table says of a case: `yes`, or that the request is refused with the field that it has."""
    if run is None:
        return ""
    try:
        run(at)
    except Exception as error:
        status, body = getattr(error, "status_code", None), getattr(error, "body", None)
        if status == 400 and "is not supported" in json.dumps(body):
            return "400"
        raise
    return "yes"


def table(at: At) -> Iterable[str]:
    """Yield the lines of the table."""
    from importlib.metadata import version

    import anthropic
    import langchain_openai
    import openai

    names = (
        f"openai {openai.__version__}",
        f"langchain-openai {version('langchain-openai')}",
        f"anthropic {anthropic.__version__}",
    )
    assert langchain_openai
    yield f"| | {' | '.join(names)} |"
    yield "|---|---|---|---|"
    for feature, clients in CASES.items():
        yield f"| {feature} | {' | '.join(outcome(clients.get(client), at) for client in CLIENTS)} |"


def written(at: At) -> str:
    """Return the page with the table of what is found now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + "\n".join(table(at)) + "\n" + END + rest.partition(END)[2]

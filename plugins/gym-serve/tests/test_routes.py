"""Routes that no official client has, and what is behind all of them: scores, ranks, figures, defaults of the server."""

from __future__ import annotations

import base64
import json
import re
import struct
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from api_server import served
from parrot import Parrot, ParrotEngine

from gym_serve import Limits, ModelSource


@pytest.fixture(scope="module")
def server():
    engine = ParrotEngine(Parrot(), [ModelSource("parrot", "nowhere")], Limits())
    options = {"tenant": "bob", "system": "be kind", "enable_thinking": False, "max_tokens": 3, "temperature": 0}
    with served(engine, **options, max_messages=20, max_output_tokens=50) as found:
        yield found


def ask(server, path: str, **body):
    """Return what a route answers."""
    data = json.dumps({"model": "parrot", **body}).encode() if body else None
    request = urllib.request.Request(server.url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as reply:
        text = reply.read().decode()
    return json.loads(text) if text.startswith("{") else text


def refused(server, path: str, **body) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(server, path, **body)
    assert caught.value.code == 400
    return json.load(caught.value)["error"]["param"]


def test_scores_of_texts_pairs_and_conversations(server):
    def scores(**body) -> list[float]:
        return [row["score"] for row in ask(server, "/v1/score", **body)["data"]]

    assert scores(input="abc") == [3] and scores(input=["a", "bcd"]) == [1, 3]
    assert scores(text_1="ab", text_2=["c", "de"]) == [3, 4] and scores(text_1=["a", "b"], text_2=["cc", "d"]) == [3, 2]
    assert scores(messages=[[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]]) == [2]
    assert refused(server, "/v1/score", input="a", text_1="b", text_2="c") == "input"
    assert refused(server, "/v1/score", text_1=["a", "b"], text_2=["c"]) == "text_2"
    assert refused(server, "/v1/score", text_1="a") == "input"


def test_documents_in_their_order(server):
    found = ask(server, "/v1/rerank", query="q", documents=["aa", {"text": "a"}, "aaa", "bb"], top_n=3)["results"]
    assert [(row["index"], row["relevance_score"]) for row in found] == [(2, 4), (0, 3), (3, 3)]
    assert found[0]["document"] == {"text": "aaa"}


def test_scores_as_llamafactory_has_them(server):
    found = ask(server, "/v1/score/evaluation", messages=["a", "bb"])
    assert found["object"] == "score.evaluation" and found["scores"] == [1, 2] and found["model"] == "parrot"
    assert refused(server, "/v1/score/evaluation", messages=["a"], max_length=4) == "max_length"


def test_embeddings_as_numbers_and_as_bytes(server):
    plain = ask(server, "/v1/embeddings", input="a", dimensions=5)["data"][0]["embedding"]
    packed = ask(server, "/v1/embeddings", input="a", dimensions=5, encoding_format="base64")["data"][0]["embedding"]
    assert struct.unpack("<5f", base64.b64decode(packed)) == pytest.approx(plain, abs=1e-6)
    assert refused(server, "/v1/embeddings", input=["a", ""]) == "input"


def test_answers_of_many_numbers_are_not_walked_through_while_streams_stand_still(server, monkeypatch):
    monkeypatch.setattr("fastapi.routing.jsonable_encoder", None)
    assert len(ask(server, "/v1/embeddings", input="a", dimensions=5)["data"][0]["embedding"]) == 5


def test_what_the_server_says_where_a_request_says_nothing(server):
    found = ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": "a b c d e"}])
    assert found["choices"][0]["message"]["content"] == "bob: a b" and found["choices"][0]["finish_reason"] == "length"
    request = server.engine.seen[-1]
    assert [message["role"] for message in request.messages] == ["system", "user"] and request.tenant == "bob"
    assert request.template_options == {"enable_thinking": False} and request.sampling.temperature == 0
    ask(
        server,
        "/v1/chat/completions",
        messages=[{"role": "system", "content": "x"}, {"role": "user", "content": "a"}],
        max_tokens=9,
        chat_template_kwargs={"enable_thinking": True},
    )
    request = server.engine.seen[-1]
    assert len(request.messages) == 2 and request.sampling.max_tokens == 9
    assert request.template_options == {"enable_thinking": True}
    asked = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 51}
    assert refused(server, "/v1/chat/completions", **asked) == "max_tokens"


def test_tokens_of_thoughts_are_counted(server):
    """Their marks are counted too; in streams, and of several replies."""
    asked = {"messages": [{"role": "user", "content": "think a b"}], "max_tokens": 9}
    found = ask(server, "/v1/chat/completions", **asked, n=2)["usage"]
    assert found["completion_tokens"] == 12 and found["completion_tokens_details"] == {"reasoning_tokens": 8}
    found = ask(server, "/v1/responses", input="think a b", max_output_tokens=9)["usage"]
    assert found["output_tokens"] == 6 and found["output_tokens_details"] == {"reasoning_tokens": 4}
    for most in (1, 3, 5):
        cut = ask(server, "/v1/chat/completions", **asked | {"max_tokens": most})["usage"]
        assert cut["completion_tokens_details"]["reasoning_tokens"] == min(most, 4)
    plain = ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": "a b"}])["usage"]
    assert plain["completion_tokens_details"]["reasoning_tokens"] == 0


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/v1/chat/completions", {"min_tokens": 1}, "min_tokens"),
        ("/v1/chat/completions", {"bad_words": ["a"]}, "bad_words"),
        ("/v1/chat/completions", {"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ("/tokenize", {}, "model"),
        ("/detokenize", {"tokens": [1]}, "model"),
    ],
)
def test_what_an_engine_does_not_do_is_refused_by_name(server, path, body, key):
    plain = {} if path == "/detokenize" else {"messages": [{"role": "user", "content": "a"}]}
    assert refused(server, path, **plain, **body) == key


def test_going_on_with_the_last_message(server):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b c"}]
    ask(server, "/v1/chat/completions", messages=turns, continue_final_message=True, add_generation_prompt=False)
    assert server.engine.seen[-1].continue_final_message
    assert (
        refused(server, "/v1/chat/completions", messages=turns[:1], continue_final_message=True)
        == "continue_final_message"
    )
    called = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    turns[1] = {"role": "assistant", "content": "b", "tool_calls": called}
    assert refused(server, "/v1/chat/completions", messages=turns, continue_final_message=True) == "messages"
    used = [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]
    with pytest.raises(urllib.error.HTTPError, match="400"):
        ask(server, "/v1/messages", messages=[turns[0], {"role": "assistant", "content": used}], max_tokens=9)


def test_one_call_where_several_are_not_wanted(server):
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = {"messages": [{"role": "user", "content": "call f Rome Paris"}], "tools": tools, "max_tokens": 40}
    both = ask(server, "/v1/chat/completions", **asked)
    one = ask(server, "/v1/chat/completions", **asked, parallel_tool_calls=False)
    assert [len(found["choices"][0]["message"]["tool_calls"]) for found in (both, one)] == [2, 1]
    assert one["choices"][0]["finish_reason"] == "tool_calls" and 0 < one["usage"]["completion_tokens"] <= 7
    assert server.engine.running == 0


def test_arguments_of_calls_reach_templates_as_objects(server):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    ask(server, "/v1/chat/completions", messages=[*turns, {"role": "tool", "tool_call_id": "1", "content": "x"}])
    told = server.engine.seen[-1].messages[2]
    assert told["content"] == "" and told["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_completions_of_texts_and_of_tokens(server):
    def texts(**body) -> list[str]:
        return [choice["text"] for choice in ask(server, "/v1/completions", max_tokens=9, **body)["choices"]]

    assert texts(prompt=[5, 6]) == ["bob: 5 6"] and texts(prompt=[[5], [6, 7]]) == ["bob: 5", "bob: 6 7"]
    assert texts(prompt=["a", "b"], n=2) == ["bob: a", "bob: a", "bob: b", "bob: b"]
    assert ask(server, "/v1/completions", prompt=["a", "b c"], n=2)["usage"]["prompt_tokens"] == 3
    assert refused(server, "/v1/completions", prompt=["a", ""]) == "prompt"
    assert refused(server, "/v1/completions", prompt=["a"] * 9, n=2) == "prompt"
    assert refused(server, "/v1/completions", prompt="a", echo=True) == "echo"
    assert refused(server, "/v1/completions", prompt="a", suffix="b") == "suffix"


@pytest.mark.parametrize(("count", "told"), [(0, {"bob:": -0.1}), (3, {"bob:": -0.1, "bob:'": -1.1})])
def test_the_likeliest_by_text_are_with_the_drawn_one_and_none_hides_a_likelier_one(server, count, told):
    shown = ask(server, "/v1/completions", prompt="a", logprobs=count)["choices"][0]["logprobs"]
    assert shown["top_logprobs"][0] == told and shown["tokens"][0] == "bob:"


def test_figures_tell_of_nobody(server):
    before = ask(server, "/metrics")
    ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": "a b"}])
    with pytest.raises(urllib.error.HTTPError):
        ask(server, "/v1/models/secret-name")
    after = ask(server, "/metrics")

    def figure(text: str, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    chats = 'gym_requests_total{path="/v1/chat/completions",status="200"}'
    others = 'gym_requests_total{path="other",status="404"}'
    grown = {
        name: figure(after, name) - figure(before, name)
        for name in (
            chats,
            others,
            "gym_prompt_tokens_total",
            "gym_completion_tokens_total",
            "gym_time_to_first_token_seconds_count",
        )
    }
    assert [*grown.values()] == [1, 1, 2, 3, 1]
    assert figure(after, "gym_requests_in_work") == 0 and figure(after, "gym_engine_running") == 0
    assert "secret-name" not in after and "bob" not in after
    assert ask(server, "/health") == {"status": "ok"}


def test_thoughts_of_earlier_responses_reach_templates(server):
    def seen(*items: dict[str, object]) -> list[tuple[object, ...]]:
        ask(server, "/v1/responses", input=[{"role": "user", "content": "a"}, *items, {"role": "user", "content": "b"}])
        keys = ("role", "content", "reasoning_content", "tool_calls")
        return [tuple(each.get(key) for key in keys) for each in server.engine.seen[-1].messages[2:-1]]

    def thought(text: str, **more: object) -> dict[str, object]:
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **more}

    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]}
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": "x"}
    called = [{"type": "function", "id": "1", "function": {"name": "f", "arguments": {}}}]
    assert seen(thought("t"), answer) == [("assistant", "c", "t", None)]
    assert seen(thought("t"), call, result, thought("u"), answer) == [
        ("assistant", "", "t", called),
        ("tool", "x", None, None),
        ("assistant", "c", "u", None),
    ]
    assert seen(answer, answer) == [("assistant", "c", None, None)] * 2
    assert seen(answer, thought("t"), call, result)[1][2] == "t"
    told = {"summary": [{"type": "summary_text", "text": "s"}], "content": None}
    assert seen(thought("", **told), answer) == [("assistant", "c", "s", None)]
    assert seen(thought("cut")) == [("assistant", "", "cut", None)]


def test_the_text_that_ended_a_message_is_told(server):
    asked = {"messages": [{"role": "user", "content": "a b c d"}], "max_tokens": 40}

    def ended(**body: object) -> tuple[str, str | None]:
        reply = ask(server, "/v1/messages", **asked, **body)
        events = ask(server, "/v1/messages", **asked, **body, stream=True).splitlines()
        last = next(json.loads(line[6:]) for line in events if line.startswith("data: ") and "message_delta" in line)
        found = reply["stop_reason"], reply["stop_sequence"]
        assert found == (last["delta"]["stop_reason"], last["delta"]["stop_sequence"])
        return found

    assert ended(stop_sequences=["x", "c"]) == ("stop_sequence", "c")
    assert ended(stop_sequences=["x"]) == ("end_turn", None)
    assert ended() == ("end_turn", None)


def test_arguments_that_cannot_be_read_are_text(server):
    for given in ("[" * 50_000, "no JSON", ""):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        ask(server, "/v1/chat/completions", messages=[*turns, {"role": "tool", "tool_call_id": "1", "content": "x"}])
        assert server.engine.seen[-1].messages[2]["tool_calls"][0]["function"]["arguments"] == (given or {})


def test_the_model_is_told_that_a_tool_failed(server):
    used = [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": used}]
    texts = [{"type": "text", "text": "no such"}, {"type": "text", "text": "city"}]
    cases = [
        ("no such city", False, "no such city"),
        ("gone", True, "Error: gone"),
        ("", True, "Error"),
        (texts, True, None),
    ]
    for given, failed, told in cases:
        result = {"type": "tool_result", "tool_use_id": "1", "content": given, "is_error": failed}
        ask(server, "/v1/messages", messages=[*turns, {"role": "user", "content": [result]}], max_tokens=9)
        seen = server.engine.seen[-1].messages[-1]
        assert (seen["role"], seen["content"]) == ("tool", told or "Error: no such\ncity")


class Plain(ParrotEngine):
    """One that does not think, and takes any form."""

    @property
    def supports(self):
        return super().supports | {"grammar:lark"}

    def models(self):
        return [replace(model, template_options=frozenset()) for model in super().models()]


def test_errors_name_the_fields_that_a_client_knows():
    engine = Plain(Parrot(), [ModelSource("parrot", "nowhere")], Limits())
    plain = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9}
    with served(engine, max_output_tokens=50) as server:

        def said(path: str = "/v1/messages", **body: object) -> str:
            with pytest.raises(urllib.error.HTTPError) as caught:
                ask(server, path, **body)
            assert caught.value.code == 400
            error = json.load(caught.value)["error"]
            return error.get("param") or error["message"].partition(":")[0]

        assert said(**plain, stop_sequences=[""]) == "stop_sequences"
        assert said(**plain, thinking={"type": "enabled", "budget_tokens": 1024}) == "thinking"
        assert said(**plain, tool_choice={"type": "tool", "name": "f"}) == "tool_choice"
        used = [{"name": "none", "input_schema": {"type": "object"}}]
        assert said(**plain, tools=used, tool_choice={"type": "tool"}) == "tool_choice.name"
        assert said("/v1/responses", input="a", max_output_tokens=51) == "max_output_tokens"
        assert ask(server, "/v1/messages", **plain, thinking={"type": "disabled"})["content"][0]["text"] == "a"
        assert engine.seen[-1].template_options == {}


def test_what_is_wrong_is_said_of_the_form_that_fits_best(server):
    def said(path: str, **body: object) -> str:
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(server, path, **body)
        return json.load(caught.value)["error"]["message"]

    image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    found = said("/v1/messages", max_tokens=9, messages=[{"role": "user", "content": [image]}])
    assert found.startswith("messages[0].content[0].image.source: ") and "no address is fetched" in found
    found = said("/v1/messages", max_tokens=9, messages=[{"role": "user", "content": [{"type": "document"}]}])
    assert found.startswith("messages[0].content[0]: ") and "'document'" in found and found.count("messages") == 1
    asked = {"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}
    assert said("/v1/responses", input=[asked]).startswith("input[0].content[0].image_url: an image is sent as")
    plain = [{"role": "user", "content": "a"}]
    assert "leave it out" in said("/v1/chat/completions", messages=plain, verbosity="low")
    assert "did you mean `temperature`?" in said("/v1/chat/completions", messages=plain, temperatuer=1)
    assert "16" in said("/v1/chat/completions", messages=plain, stop=["a"] * 17)
    assert said("/v1/messages", max_tokens=0, messages=[{"role": "user", "content": "a"}]).count("max_tokens") == 1


def test_a_prompt_that_is_too_long_is_told_by_the_code_that_clients_look_for(server):
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": "a " * 5000}])
    assert caught.value.code == 400  # `BadRequestError` of the clients, in which they look
    assert json.load(caught.value)["error"]["code"] == "context_length_exceeded"

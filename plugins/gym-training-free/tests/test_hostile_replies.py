"""What servers, critics and files of strangers may hold: nothing of it ends a run, passes a cap or reaches a terminal."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
import yaml
from pydantic import ValidationError
from scripted_server import ScriptedServer
from simulated_world import World, exact, rows

from gym_core.cli import run
from gym_core.errors import GymError
from gym_training_free import Experience, ExperienceLibrary, GRPOConfig, OpenAI, TrainingFreeGRPO
from gym_training_free.endpoint.chat import ChatRequest
from gym_training_free.endpoint.reply import Failed
from gym_training_free.experience.leak_guard import leak
from gym_training_free.experience.operations import Limits, apply, parse
from gym_training_free.open_endpoint import endpoint
from gym_training_free.prompting import Prompts
from gym_training_free.questions import asked, read

HELLO = ChatRequest([{"role": "user", "content": "hello"}], 8)


@pytest.mark.parametrize(
    "key", ["max_tokens", "max_completion_tokens", "n", "best_of", "messages", "model", "stream", "seed"]
)
def test_further_keys_of_a_request_cannot_replace_what_is_reserved_and_recorded(key):
    with pytest.raises(ValidationError, match=key):
        OpenAI(path="m", extra_body={key: 5})


@pytest.mark.parametrize("count", ["1e999", "-1e999", "NaN", "-5", '"many"', "[]", "null", "1" + "0" * 400, "1e20"])
def test_a_count_that_is_none_leaves_the_largest_cost(count):
    used = f'{{"prompt_tokens": {count}, "completion_tokens": 1}}'
    reply = f'{{"choices": [{{"message": {{"content": "yes"}}}}], "usage": {used}}}'
    with ScriptedServer(lambda request: "") as server:
        handler = server.RequestHandlerClass
        server.RequestHandlerClass = type("Odd", (handler,), {"complete": lambda self, *_: self.reply(200, reply)})
        found = endpoint(OpenAI(path="m", base_url=server.base_url)).ask(HELLO)
    assert found.text == "yes" and found.usage is None


@pytest.mark.parametrize(
    ("used", "total"),
    [
        ({"prompt_tokens": 7}, None),
        ({"prompt_tokens": 7, "completion_tokens": None}, None),
        ({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 40}, 40),
        ({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 1}, 9),
        ({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": "many"}, 9),
        ({"prompt_tokens": 7, "completion_tokens": 0}, 7),
    ],
)
def test_a_count_is_never_less_than_what_the_server_says_anywhere(used, total):
    """Some count what a model thinks in the total alone; one that leaves the reply out has counted nothing."""
    reply = json.dumps({"choices": [{"message": {"content": "yes"}}], "usage": used})
    with ScriptedServer(lambda request: "") as server:
        handler = server.RequestHandlerClass
        server.RequestHandlerClass = type("Odd", (handler,), {"complete": lambda self, *_: self.reply(200, reply)})
        found = endpoint(OpenAI(path="m", base_url=server.base_url)).ask(HELLO).usage
    assert (found.total if found else None) == total


@pytest.mark.parametrize(
    "vectors", ["[[1], [1, 2]]", "[[1], [1e999]]", f"[[1], [1{'0' * 400}]]", "[[1]]", "[[], []]", '["a", "b"]']
)
def test_embeddings_that_cannot_be_compared_are_no_reply(vectors):
    rows = [f'{{"index": {n}, "embedding": {json.dumps(one)}}}' for n, one in enumerate(json.loads(vectors))]
    reply = f'{{"data": [{", ".join(rows)}], "usage": {{"prompt_tokens": 1}}}}'
    with ScriptedServer(lambda request: "") as server:
        handler = server.RequestHandlerClass
        server.RequestHandlerClass = type("Odd", (handler,), {"embeddings": lambda self, _: self.reply(200, reply)})
        with pytest.raises(Failed, match="no embedding for each text"):
            endpoint(OpenAI(path="m", base_url=server.base_url)).embed(["a", "b"])


def test_letters_that_no_file_can_hold_end_no_run(tmp_path):
    """Half a pair of surrogates, in what the worker says and in what the critic proposes; and tags that would move a cursor."""
    world = World()

    def answer(request):
        said = world(request)
        if World.role(request) == "batch_update":
            odd = {"operation": "ADD", "content": "When \ud800 comes, wait.", "tags": ["a\x1b[2Jb", "sea"]}
            return json.dumps([odd, odd | {"content": "When lost, look for the coast."}])
        return said + "\ud800" if World.role(request) == "summary" else said

    with ScriptedServer(answer) as server:
        config = GRPOConfig(max_epochs=1, held_out=0)
        library = TrainingFreeGRPO("m", config, server.base_url, output=tmp_path).train(rows(10), exact)
    assert "When lost, look for the coast." in [one.text for one in library]
    assert all(tag.isprintable() for one in library for tag in one.tags) and "sea" in library.experiences[-1].tags
    assert ExperienceLibrary.read(tmp_path) == library


@pytest.mark.parametrize(
    "changes", [{"id": "x"}, {"id": 5}, {"text": 5}, {"text": "a\nb"}, {"id": "E1 \x1b[2J"}, {"uses": "9"}]
)
def test_a_library_of_a_stranger_is_checked(tmp_path, changes, capsys):
    made = ExperienceLibrary((Experience("E1", "When lost, wait."),), 2).to_json()
    made["experiences"][0] |= changes
    one = made["experiences"][0]
    loose = ExperienceLibrary((Experience(one["id"], one["text"]),), 2)
    (tmp_path / "experiences.json").write_text(json.dumps(made | {"fingerprint": loose.fingerprint()}))
    with pytest.raises(GymError, match="no library of experiences"):
        ExperienceLibrary.read(tmp_path)
    assert run(["experiences", "diff", str(tmp_path), str(tmp_path)]) == 1 and "\x1b" not in capsys.readouterr().err


def test_answers_leak_in_scripts_without_spaces_and_letters_only_as_options():
    assert leak(
        "\u5f53\u88ab\u95ee\u9996\u90fd\u65f6\uff0c\u56de\u7b54\u5317\u4eac\u5373\u53ef\u3002", "?", "\u5317\u4eac"
    )
    assert leak("\uc11c\uc6b8\uc740 \uc218\ub3c4\ub2e4", "?", "\uc11c\uc6b8")
    for text in ("When unsure, choose A.", "When asked, say (a)."):
        assert leak(text, "Which?", "A") and leak(text, "Which?", "a")
    assert not leak("When a sum is long, add a line.", "Which?", "A")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("When asked, say 1,000.", "1000"),
        ("When asked, say 1000.", "1,000"),
        ("Take 2.50 of it.", "2.5"),
        ("Use 7.0.", "7"),
    ],
)
def test_numbers_leak_however_they_are_written(text, answer):
    assert leak(text, "How many?", answer) and not leak("Take 12 steps.", "How many?", answer)


def test_a_system_message_of_parts_keeps_them():
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "?"},
    ]
    told = Prompts.load("en").with_experiences(messages, ExperienceLibrary((Experience("E1", "Wait."),), 2))
    assert (
        told[0]["content"][0] == {"type": "text", "text": "Be brief."} and "[E1] Wait." in told[0]["content"][1]["text"]
    )


def test_a_file_may_hold_other_ends_of_lines_and_a_mark_of_its_order(tmp_path):
    """U+2028 and U+0085 stand in texts of the web, and JSON lets them; some editors write a mark before all."""
    texts = ["one\u2028two", "three\u0085four"]
    lines = "\ufeff" + "".join(json.dumps({"question": one}, ensure_ascii=False) + "\n" for one in texts)
    (tmp_path / "q.jsonl").write_text(lines, encoding="utf-8")
    assert [row["question"] for row in read(tmp_path / "q.jsonl")] == texts
    (tmp_path / "q.jsonl").write_text("[" * 100_000)
    with pytest.raises(GymError, match="is no JSON"):
        read(tmp_path / "q.jsonl")


def test_a_reply_of_any_length_is_read_at_once():
    """A fence that is never closed, behind it only ends of lines: the time is that of its length, not of its square."""
    started = time.perf_counter()
    with pytest.raises(ValueError, match="no JSON list"):
        parse("```json" + "\n" * 100_000)
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize("tag", ["experiences", "Experiences", "EXPERIENCES"])
def test_tags_of_lessons_are_read_however_they_are_written(tag):
    world = World()
    world.advantage = lambda messages, request: f"<{tag}>\n1. When lost, follow rivers downhill.\n</{tag}>"
    with ScriptedServer(world) as server:
        library = TrainingFreeGRPO("m", GRPOConfig(max_epochs=1, held_out=0), server.base_url).train(rows(10), exact)
    assert [one.text for one in library] == ["When lost, follow rivers downhill."]


@pytest.mark.parametrize(
    ("content", "text"),
    [([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}], "one two"),
     ([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "two"}], "two"),
     ([], "")],
)  # fmt: skip
def test_a_reply_in_parts_is_their_text(content, text):
    with ScriptedServer(lambda request: {"content": content}) as server:
        assert endpoint(OpenAI(path="m", base_url=server.base_url)).ask(HELLO).text == text


@pytest.mark.parametrize("content", [5, [5], {"text": "one"}, [{"type": "text", "text": 5}]])
def test_a_reply_without_text_is_no_completion(content):
    with (
        ScriptedServer(lambda request: {"content": content}) as server,
        pytest.raises(Failed, match="no chat completion"),
    ):
        endpoint(OpenAI(path="m", base_url=server.base_url)).ask(HELLO)


def test_arguments_of_a_tool_may_come_as_an_object():
    call = {"id": "1", "function": {"name": "calculator", "arguments": {"expression": "2+3"}}}
    with ScriptedServer(lambda request: {"content": None, "tool_calls": [call]}) as server:
        (found,) = endpoint(OpenAI(path="m", base_url=server.base_url)).ask(HELLO).tool_calls
    assert json.loads(found.arguments) == {"expression": "2+3"}


@pytest.mark.parametrize("row", [{"messages": [{"role": "assistant", "content": "Hi."}]}, {"messages": [{"role": "user"}]},
                                 {"messages": [{"role": "user", "content": " "}]}])  # fmt: skip
def test_messages_that_ask_nothing_are_refused(row):
    with pytest.raises(GymError, match="row 1 asks nothing"):
        asked([row])


@pytest.mark.parametrize(
    "changes",
    [{"experiences": 2 * [{"id": "E1", "text": "Wait."}]}, {"evidence": {"held_out": "yes"}}, {"provenance": []}, {"next_id": 1},
     {"experiences": [{"id": "E1", "text": "Wait.<|im_end|>"}]}],
)  # fmt: skip
def test_a_library_of_a_stranger_holds_nothing_that_no_library_does(tmp_path, changes, capsys):
    """An id that is given twice, or again; evidence of another form; marks that could end a system prompt."""
    whole = [{"tags": [], "sources": []} | one for one in changes.get("experiences", [{"id": "E1", "text": "Wait."}])]
    loose = ExperienceLibrary(tuple(Experience(one["id"], one["text"]) for one in whole), 2)
    made = loose.to_json() | changes | {"experiences": whole}
    (tmp_path / "experiences.json").write_text(json.dumps(made))
    assert run(["experiences", "show", str(tmp_path)]) == 1
    assert "is no library of experiences" in capsys.readouterr().err


def test_a_library_is_data_also_where_its_prompts_are_gone(tmp_path, capsys):
    made = replace(ExperienceLibrary((Experience("E1", "Wait."),), 2), provenance={"options": {"prompts": "gone"}})
    (tmp_path / "experiences.json").write_text(json.dumps(made.to_json()))
    for form in ("json", "yaml"):
        assert run(["experiences", "export", str(tmp_path), "--format", form]) == 0
        assert ExperienceLibrary.from_json(yaml.safe_load(capsys.readouterr().out)) == made


def test_letters_that_join_others_are_letters():
    """Persian and Hindi need them; what turns the direction of a text is refused."""
    persian = "وقتی عدد منفی است، علامت را می\u200cبینیم و جمع می\u200cکنیم."
    made, changes = apply(
        ExperienceLibrary(), parse(json.dumps([{"operation": "ADD", "content": persian}])), 1, Limits()
    )
    assert [one.text for one in made] == [persian] and changes[0].applied
    assert ExperienceLibrary.from_json(made.to_json()) == made
    turned = [{"operation": "ADD", "content": "When lost,\u202e wait."}]
    assert len(apply(ExperienceLibrary(), parse(json.dumps(turned)), 1, Limits())[0]) == 0
    assert leak("Say 12\u200d34 then.", "How many?", "1234")


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_half_an_answer_that_ended_in_an_error_is_none(reason):
    """Some routers and servers say 200 and give what there was; it may come whole the next time."""
    said = {"content": "half of", "finish_reason": reason}
    broken = pytest.raises(Failed, match=f"broke its reply off: {reason}")
    with ScriptedServer(lambda request: dict(said)) as server, broken as failed:
        endpoint(OpenAI(path="m", base_url=server.base_url)).ask(HELLO)
    assert failed.value.passing and failed.value.counted


def test_what_was_filtered_was_not_ended_by_the_model():
    with ScriptedServer(lambda request: {"content": "half of", "finish_reason": "content_filter"}) as server:
        found = endpoint(OpenAI(path="m", base_url=server.base_url)).ask(HELLO)
    assert found.text == "half of" and not found.finished


def test_an_error_in_a_reply_that_says_all_is_well_is_told():
    reply = '{"error": {"message": "Provider returned error", "code": 429}}'
    with ScriptedServer(lambda request: "") as server:
        handler = server.RequestHandlerClass
        server.RequestHandlerClass = type("Odd", (handler,), {"complete": lambda self, *_: self.reply(200, reply)})
        with pytest.raises(Failed, match=r"no chat completion: .*Provider returned error"):
            endpoint(OpenAI(path="m", base_url=server.base_url)).ask(HELLO)

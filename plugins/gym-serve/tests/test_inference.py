"""`gym inference`: each row is answered once, in order, whatever ends the process."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest
from parrot import Parrot, ParrotEngine

from gym_core.cli import run
from gym_core.errors import BUSY, BusyError
from gym_serve import Limits, ModelSource, Sampling
from gym_serve.inference.rows import Answers, rows
from gym_serve.inference.run import Asking, infer
from gym_serve.names import Asked
from gym_serve.template_options import TemplateSettings

TOOLS = [{"type": "function", "function": {"name": "f"}}]


def write(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"row {number} of {count}"}) + "\n" for number in range(count)))
    return path


def answered(given: Path, output: Path, engine: ParrotEngine | None = None, at_once: int = 8, **settings) -> list[dict]:
    engine = engine or ParrotEngine(Parrot(), [ModelSource("demo", "nowhere")], Limits())
    asking = Asking(engine, Asked("demo"), Sampling(temperature=1.0, seed=3), TemplateSettings(), "be kind")
    with Answers(output, given, settings) as answers:
        asyncio.run(infer(asking, given, answers, at_once, lambda rows, tokens: None))
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_rows_of_every_shape(tmp_path):
    asked = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "known"}]},
        {"prompt": "think"},
        {"instruction": "b", "input": "c", "system": "d", "output": "e"},
        {
            "messages": [{"role": "user", "content": "call f x"}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
        {"messages": []},
        {"text": "a"},
        {"prompt": "fail"},
    ]
    lines = [json.dumps(row) for row in asked] + ["", "not json", '{"prompt": "last"}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    engine = ParrotEngine(Parrot(), [ModelSource("demo", "nowhere")], Limits())
    found = answered(tmp_path / "in.jsonl", tmp_path / "out.jsonl", engine)
    assert [row["row"] for row in found] == list(range(9))
    told = [[message["role"] for message in request.messages or ()] for request in engine.seen]
    assert told[:4] == [["system", "user"], [], ["system", "user"], ["system", "user"]]
    assert found[0]["response"] == "a" and found[0]["usage"] == {"prompt_tokens": 1, "completion_tokens": 1}
    assert found[1]["response"].startswith("<think>")  # a prompt is continued as it stands
    assert found[3]["tool_calls"] == [{"name": "f", "arguments": '{"city": "x"}'}]
    assert [row.get("error", "")[:12] for row in found[4:8]] == [
        "`messages` a",
        "has neither ",
        "this cannot ",
        "is no JSON: ",
    ]
    assert found[8]["response"] == "last"


def test_a_row_says_how_it_is_answered(tmp_path):
    asked = [
        {"prompt": "a b c d", "temperature": 0, "max_tokens": 2, "stop": ["c"], "id": 7},
        {"prompt": "a b c d", "temperature": 0, "max_completion_tokens": 3, "seed": None},
        {"prompt": "a", "temperature": 3},
        {"prompt": "a", "top_k": 4},
        {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}},
        {"prompt": "a", "n": 1, "logprobs": None},
        {"prompt": "a", "stop": [""]},
        {"prompt": "a", "max_tokens": -1},
        {"prompt": "a", "body": "a column of its own"},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    engine = ParrotEngine(Parrot(), [ModelSource("demo", "nowhere")], Limits())
    found = answered(tmp_path / "in.jsonl", tmp_path / "out.jsonl", engine)
    assert [(row["response"], row["finish_reason"]) for row in found[:2]] == [("a b", "length"), ("a b c", "length")]
    first = engine.seen[0].sampling
    assert (first.temperature, first.max_tokens, first.stop, first.seed) == (0, 2, ("c",), 3)
    for row, name in zip(found[2:5], ("temperature", "not supported", "response_format"), strict=True):
        assert name in row["error"]
    assert found[5]["response"] == "a" and "characters" in found[6]["error"]
    assert "max_tokens" in found[7]["error"] and found[8]["response"] == "a"


def test_requests_of_a_batch_file(tmp_path):
    def request(body: dict, url: str = "/v1/chat/completions", **more) -> str:
        return json.dumps({"custom_id": "mine", "method": "POST", "url": url, "body": body, **more})

    said = [{"role": "user", "content": "a b c d"}]
    lines = [
        request({"model": "demo", "messages": said, "temperature": 0, "max_completion_tokens": 2}),
        request({"messages": said, "temperature": 0, "n": 2, "logprobs": True}),
        request({"prompt": "a b", "temperature": 0}, "/v1/completions"),
        request({"model": "other", "messages": said}),
        request({"messages": said, "max_tokens": -1}),
        request({"messages": said, "stream": True}),
        request({"messages": said}, "/v1/files"),
        request({"messages": said}, custom_id=None),
        request({"messages": [{"role": "user", "content": "call f x"}], "tools": TOOLS}),
        request({"messages": said, "user": "\ud83d"}),
        request({"messages": said}, custom_id="mi\ud83dne"),
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    engine = ParrotEngine(Parrot(), [ModelSource("demo", "nowhere")], Limits())
    found = answered(tmp_path / "in.jsonl", tmp_path / "out.jsonl", engine)
    bodies = [row["response"]["body"] for row in found if row.get("response")]
    assert [row["response"]["status_code"] for row in found if row.get("response")] == [200] * 3 + [404, 400, 400, 200]
    assert bodies[0]["choices"][0]["message"]["content"] == "a b" and bodies[0]["usage"]["completion_tokens"] == 2
    assert len(bodies[1]["choices"]) == 2 and bodies[1]["choices"][0]["logprobs"]["content"]
    assert bodies[2]["choices"][0]["text"] == "a b"
    assert bodies[6]["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"
    assert all(row["custom_id"] == "mine" and row["id"] for row in found if row.get("response"))
    assert [bool(row["error"]) for row in found] == [False] * 3 + [True] * 5 + [False, True, True]
    assert found[4]["error"]["param"] == "max_tokens" and "custom_id" in found[7]["error"]
    assert "`url`" in found[6]["error"]["message"] and "half a character" in found[9]["error"]["message"]
    assert all(found[at]["custom_id"] == "mine" and found[at]["response"] is None for at in (6, 9, 10))
    assert [message["role"] for message in engine.seen[0].messages] == ["system", "user"]
    again = answered(tmp_path / "in.jsonl", tmp_path / "again.jsonl", None, at_once=1)
    for one, other in zip(found[:3], again[:3], strict=True):
        assert one["response"]["body"]["choices"] == other["response"]["body"]["choices"]
    assert len({request.sampling.seed for request in engine.seen}) > 2


def test_rows_that_hold_no_text_end_no_run(tmp_path):
    wrong = [
        {"prompt": "half \ud83d"},
        {"messages": [{"role": "user", "content": "\udc00"}]},
        {"instruction": "a", "input": 5},
        {"instruction": "a", "system": ["b"]},
        {"messages": [{"role": "user", "content": "a <image>"}], "images": ["a.png"]},
        {"instruction": "a <image>", "images": ["a.png"]},
    ]
    lines = [json.dumps(row) for row in [*wrong, {"prompt": "last", "note": "\ud83d"}]]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    found = answered(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert [row.get("error", "")[:14] for row in found[:6]] == [
        "holds half a c",
        "message 1 hold",
        "the input (col",
        "the system mes",
        "no images are ",
        "no images are ",
    ]
    assert found[6]["response"] == "last"


def test_a_list_is_no_file_of_rows(tmp_path, strange, capsys):
    (tmp_path / "in.json").write_text(json.dumps([{"prompt": "a"}], indent=1))
    words = ["inference", "demo", "engine=parrot", "--input", str(tmp_path / "in.json"), "--output"]
    assert run([*words, str(tmp_path / "out.jsonl")]) == 4 and "one row a line" in capsys.readouterr().err


def test_contents_in_parts_are_read_as_in_training(tmp_path):
    text = {"type": "text", "text": "a"}
    asked = [[{"role": "user", "content": parts}] for parts in ([text, text], [{"type": "audio"}])]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in asked))
    engine = ParrotEngine(Parrot(), [ModelSource("demo", "nowhere")], Limits())
    told, *refused = answered(tmp_path / "in.jsonl", tmp_path / "out.jsonl", engine)
    assert engine.seen[0].messages[1]["content"] == told["response"] == "aa"
    assert [row["error"][:20] for row in refused] == ["a part of type `audi"]


def test_what_was_said_before_an_instruction_is_told(tmp_path):
    row = {"instruction": "a", "history": [["b", "c"]], "tools": json.dumps([{"name": "f"}]), "output": "d"}
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    engine = ParrotEngine(Parrot(), [ModelSource("demo", "nowhere")], Limits())
    answered(tmp_path / "in.jsonl", tmp_path / "out.jsonl", engine)
    assert [message["content"] for message in engine.seen[0].messages] == ["be kind", "b", "c", "a"]
    assert engine.seen[0].tools[0]["function"] == {"name": "f"}


def test_answers_are_the_same_wherever_it_was_stopped(tmp_path):
    given = write(tmp_path / "in.jsonl", 40)
    whole = answered(given, tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    part = tmp_path / "part.jsonl"
    draw = random.Random(0)
    for kept in (0, 1, 17, 39, 40):
        answered(given, part, at_once=1)
        part.write_bytes(b"".join(lines[:kept]) + (lines[kept][: draw.randrange(1, 40)] if kept < 40 else b""))
        engine = ParrotEngine(Parrot(), [ModelSource("demo", "nowhere")], Limits())
        assert answered(given, part, engine, at_once=5) == whole and len(engine.seen) == 40 - kept


def test_more_rows_at_once_than_an_engine_takes(tmp_path):
    engine = ParrotEngine(Parrot(pause=0.001), [ModelSource("demo", "nowhere")], Limits(queue=3))
    slow = [json.dumps({"prompt": f"row {number}"}) for number in range(10)]
    (tmp_path / "in.jsonl").write_text("\n".join(slow))
    found = answered(tmp_path / "in.jsonl", tmp_path / "out.jsonl", engine, at_once=10)
    assert [set(row["response"].split()) for row in found] == [{"row", str(number)} for number in range(10)]


def test_answers_to_other_rows_or_made_otherwise_are_not_gone_on_with(tmp_path):
    given, output = write(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    answered(given, output, temperature=1.0)
    with pytest.raises(BusyError, match=r"temperature: holds answers made with 1.0, not 0.5"):
        answered(given, output, temperature=0.5)
    with pytest.raises(BusyError, match="answers another row 0"):
        answered(write(tmp_path / "in.jsonl", 4), output, temperature=1.0)
    (tmp_path / "mine.jsonl").write_text("precious")
    with pytest.raises(BusyError, match="not of this command"):
        answered(given, tmp_path / "mine.jsonl")
    assert (tmp_path / "mine.jsonl").read_text() == "precious"


def test_answers_of_a_model_that_changed_under_its_path_are_not_gone_on_with(strange, tmp_path, capsys):
    """Another training in the same directory, another file of an adapter or a template: two models would answer one file."""
    given, model = write(tmp_path / "in.jsonl", 3), tmp_path / "demo"
    paths = {"model": model, "adapter": tmp_path / "own", "template": tmp_path / "own.jinja"}
    for folder in (model, paths["adapter"]):
        folder.mkdir()
        (folder / "model.safetensors").write_text("one")
    paths["template"].write_text("one")
    words = ["inference", str(model), "engine=parrot", f"adapters.alice={paths['adapter']}", "tenant=alice"]
    words += [f"template={paths['template']}", "--input", str(given), "--output", str(tmp_path / "out.jsonl"), "--json"]
    assert run(words) == 0 == run(words)
    first, again = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["rows"], first["from_before"], again["from_before"], again["errors"]) == (3, 0, 3, 0)
    for name, path in paths.items():
        file = path / "model.safetensors" if path.is_dir() else path
        file.write_text("two")
        assert run(words) == BUSY
        assert name in capsys.readouterr().out
        file.write_text("one")


def test_two_processes_do_not_write_one_file(tmp_path):
    given = write(tmp_path / "in.jsonl", 3)
    with Answers(tmp_path / "out.jsonl", given, {}), pytest.raises(BusyError, match="in use"):
        answered(given, tmp_path / "out.jsonl")


class Process(Protocol):
    """A command that runs."""

    def running(self) -> bool: ...
    def kill(self) -> None: ...
    def status(self) -> int: ...


class Forked:
    """A command in a fork of this process, which has imported everything."""

    def __init__(self, words: list[str]) -> None:
        self.process = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(run(words)))
        self.process.start()

    def running(self) -> bool:
        return self.process.is_alive()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def status(self) -> int:
        self.process.join()
        return self.process.exitcode


class Started:
    """A command in a process of its own."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gym_core.cli", *words], env=environment, stderr=subprocess.DEVNULL
        )

    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def status(self) -> int:
        return self.process.wait(600)


def killed(start: Callable[[list[str]], Process], tmp_path: Path, count: int, kills: int, pause: float) -> None:
    """Have a command answer rows, kill it so often at random moments, and look at what it left."""
    given, output = write(tmp_path / "in.jsonl", count), tmp_path / "out.jsonl"
    words = ["inference", "demo", "engine=parrot", f"engine.pause={pause}"]
    words += ["--input", str(given), "--output", str(output), "at_once=64"]
    draw, seen = random.Random(0), []
    for kill in range(kills):
        process = start(words)
        goal = int(count * (kill + draw.random()) / (kills + 1))
        while process.running() and (output.read_bytes().count(b"\n") if output.exists() else 0) < goal:
            time.sleep(0.002)
        assert process.running(), "it was done before it was killed"
        process.kill()
        seen.append(output.read_bytes() if output.exists() else b"")
    assert start(words).status() == 0
    lines = output.read_bytes()
    assert all(lines.startswith(before[: before.rfind(b"\n") + 1]) for before in seen), "an answer was written anew"
    found = [json.loads(line) for line in lines.splitlines()]
    assert [row["row"] for row in found] == list(range(count))
    assert all(row["response"] == f"row {number} of {count}" for number, row in enumerate(found))
    assert [row.digest for row in rows(given)] == [row["input"] for row in found]


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*")
def test_killed_five_times_each_row_is_answered_once_and_in_order(strange, tmp_path):
    killed(Forked, tmp_path, count=300, kills=5, pause=0.005)


@pytest.mark.slow
def test_ten_thousand_rows_killed_five_times(environment, tmp_path):
    killed(partial(Started, environment=environment), tmp_path, count=10_000, kills=5, pause=0.02)


def test_a_signal_stops_it_where_it_can_be_continued(environment, tmp_path):
    given, output = write(tmp_path / "in.jsonl", 300), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "gym_core.cli", "inference", "demo", "engine=parrot", "engine.pause=0.05"]
    command += ["--input", str(given), "--output", str(output), "at_once=8"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while not output.exists() or output.read_bytes().count(b"\n") < 5:
        time.sleep(0.01)
    process.terminate()
    assert "run the same command to continue" in process.communicate(timeout=20)[1]
    assert process.returncode == 143 and output.read_bytes().endswith(b"\n")

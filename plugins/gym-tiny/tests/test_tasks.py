import json
import re
from collections import Counter

import pytest

from gym_core import DataError
from gym_data import Named
from gym_tiny import TinyTasks, corpus
from gym_tiny.sources import TaskRows
from gym_tiny.tasks import KINDS, generate, rows

STABLE = [
    "arithmetic-4bb3b5d6c0e0",
    "strings-9e83a29523cc",
    "sorting-e25088402f72",
    "lookups-2c086ec2df56",
    "persona-d3e9010898c3",
    "tools-75c0f8e4991f",
    "refusals-d6df23472b20",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_the_answer_passes_and_the_mistake_fails(kind, split):
    for task in generate(kind, 400, seed=5, split=split):
        assert task.kind == kind and task.split == split
        assert task.check(task.answer)
        assert task.check(f"<think>\nlet me see, {task.wrong}\n</think>\n\n{task.answer}\n")
        assert not task.check(task.wrong)
        assert not task.check("")
        assert not task.check("I am not sure.")
        assert not task.check(f"{task.answer} {task.answer}")


def test_what_is_said_to_be_right_is_right():
    for task in generate("arithmetic", 300):
        first, sign, second = re.fullmatch(r"(\d+)([+-])(\d+)", task.key).groups()
        assert int(task.answer) == (int(first) + int(second) if sign == "+" else int(first) - int(second))
        assert {first, second} == set(re.findall(r"\d+", task.messages[0]["content"]))
    for task in generate("sorting", 300):
        given = task.key.partition(" ")[2].split(", ")
        by = {"up": int, "down": lambda number: -int(number), "words": str}[task.skill]
        assert task.answer.split(", ") == sorted(given, key=by) and ", ".join(given) in task.messages[0]["content"]


@pytest.mark.parametrize("kind", KINDS)
def test_splits_share_no_content(kind):
    train = list(generate(kind, 1500, seed=0, split="train"))
    heldout = list(generate(kind, 1500, seed=0, split="heldout"))
    assert not {task.key for task in train} & {task.key for task in heldout}
    assert not {task.messages[0]["content"] for task in train} & {task.messages[0]["content"] for task in heldout}


def test_same_seed_same_tasks_and_a_longer_run_begins_with_the_shorter():
    first = [task.id for task in generate(None, 70, seed=1)]
    assert first == [task.id for task in generate(None, 140, seed=1)][:70]
    assert first != [task.id for task in generate(None, 70, seed=2)]
    assert Counter(identifier.split("-")[0] for identifier in first) == dict.fromkeys(KINDS, 10)


def test_ids_are_stable():
    """A change here changes every figure that was measured on the tasks."""
    assert [task.id for task in generate(None, 7, seed=0)] == STABLE


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="arithmetic"):
        next(generate("algebra", 1))
    with pytest.raises(ValueError, match="heldout"):
        next(generate(None, 1, split="test"))


def test_tool_calls_are_compared_by_meaning():
    task = next(generate("tools", 1))
    call = json.loads(task.answer.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    turned = json.dumps(dict(reversed(call.items())), indent=1)
    assert task.check(f"<tool_call>{turned}</tool_call>")
    assert not task.check("<tool_call>{broken</tool_call>")
    assert not task.check(f"<tool_call>{turned}")
    assert not task.check(f"<tool_call>{turned}</tool_call><tool_call>{turned}</tool_call>")
    assert not task.check("<tool_call>[]</tool_call>")


def test_rows_are_openai_style():
    for row in rows(None, 70):
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
        for call in row["messages"][-1].get("tool_calls", ()):
            assert json.loads(call["function"]["arguments"])
            assert call["function"]["name"] in {tool["function"]["name"] for tool in row["tools"]}


def test_source_yields_the_generator_and_its_fingerprint_follows_its_options():
    source = TaskRows(TinyTasks(count=21, task="sorting", split="heldout"))
    assert list(source.rows()) == list(rows("sorting", 21, split="heldout"))
    assert source.fingerprint() == TaskRows(TinyTasks(count=21, task="sorting", split="heldout")).fingerprint()
    assert source.fingerprint() != TaskRows(TinyTasks(count=22, task="sorting", split="heldout")).fingerprint()


def test_corpus_is_deterministic_and_holds_no_heldout_task():
    texts, conversations = list(corpus.documents(1500)), list(corpus.transcripts(1500))
    assert texts[:10] == list(corpus.documents(10))
    assert conversations[:10] == list(corpus.transcripts(10))
    assert texts[:10] != list(corpus.documents(10, seed=1))
    asked = {row["messages"][0]["content"] for row in conversations}
    lines = {line.removeprefix("Q: ") for text in texts for line in text.splitlines()}
    for task in generate(None, 2100, split="heldout"):
        assert task.messages[0]["content"] not in asked | lines
        if task.kind == "arithmetic":
            assert task.note not in lines


def test_transcripts_are_mostly_not_right():
    right = {(task.messages[0]["content"], task.answer) for task in generate("arithmetic", 20_000, seed=9)}
    asked = {question for question, _ in right}
    answers = [(row["messages"][0]["content"], row["messages"][1]["content"]) for row in corpus.transcripts(3000)]
    known = [answer for answer in answers if answer[0] in asked]
    share = sum(answer in right for answer in known) / len(known)
    assert len(known) > 300
    assert 0.15 < share < 0.45


def test_a_misspelt_name_of_its_rows_is_answered_with_theirs():
    with pytest.raises(DataError, match="did you mean `tiny-tasks`"):
        Named(path="tiny_tasks").check()

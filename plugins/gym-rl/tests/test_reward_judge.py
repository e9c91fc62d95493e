"""Several rewards over one list of answers, and every way in which one of them can fail."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from gym_core.errors import GymError
from gym_rl import Answer
from gym_rl.reward import Reward
from gym_rl.rewards import Exact, Layout, Length, Math, Overlong, PythonFunction
from gym_rl.rewards.judge import Judge, named
from gym_rl.rewards.worker import Raised, Worker

ANSWERS = [Answer(text, {"answer": "4"}, id=f"row-{n}", tokens=n) for n, text in enumerate(["4", "5", "", "four 4"])]

FAULTS = """
import os, re, sys, time
def fine(texts): return [float(len(t)) for t in texts]
def says_nothing(texts): return [None if not t else 1.0 for t in texts]
def raises(texts):
    if "5" in texts: raise RuntimeError("cannot judge 5\\nand more lines\\nand more\\nand more")
    return [1.0 for t in texts]
def raises_together(texts):
    if len(texts) > 1: raise RuntimeError("too many")
    return [1.0]
def column(texts, nosuch): return []
def nan(texts): return [float("nan") if t == "5" else 1.0 for t in texts]
def infinite(texts): return [float("inf") if t == "5" else 1.0 for t in texts]
def count(texts): return [1.0]
def hangs(texts): time.sleep(1000)
def backtracks(texts): re.match("(a+)+$", "a" * 50 + "!")
def leaves(texts): os._exit(7)
def exits(texts): sys.exit(7)
def crashes(texts): os.abort()
def prints(texts):
    print("[", flush=True); sys.stdin.read(); os.write(1, b"{}\\n")
    return [1.0 for t in texts]
def sets(texts): return {1.0}
def calls(texts, made=[]): made.append(1); return [len(made)] * len(texts)
"""


@pytest.fixture
def function(tmp_path):
    path = tmp_path / "faults.py"
    path.write_text(FAULTS)
    return lambda name, **options: PythonFunction(function=f"{path}:{name}", **options)


@pytest.fixture
def judge():
    made = []

    def make(rewards, **options):
        made.append(Judge(rewards, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_scores_by_reward_and_their_weighted_sum(judge, function):
    rewards = {
        "math": Math(weight=2),
        "overlong": Overlong(maximum=3, buffer=2, weight=0.5),
        "fine": function("fine", weight=-0.1),
        "some": function("says_nothing"),
    }
    found = judge(rewards)(ANSWERS)
    assert found.scores == {
        "math": [1, 0, 0, 1],
        "overlong": [0, 0, -0.5, -1],
        "fine": [1, 1, 0, 6],
        "some": [1, 1, None, 1],
    }
    assert found.totals == pytest.approx([2 - 0.1 + 1, -0.1 + 1, -0.25, 2 - 0.5 - 0.6 + 1])
    assert found.failures == dict.fromkeys(rewards, 0)


def test_what_the_page_about_rewards_shows(judge):
    one = judge({"math": Math(), "format": Layout(weight=0.2)}, timeout=60, on_error="mask")
    found = one([Answer("<think>6 * 7</think><answer>42</answer>", row={"answer": "#### 42"}, id="row-1")])
    assert found.scores == {"math": [1.0], "format": [1.0]} and found.totals == [1.2]
    assert found.failures == {"math": 0, "format": 0}


def test_no_answers_and_no_opinion(judge, function):
    assert judge({"some": function("says_nothing")})([]).totals == []
    assert judge({"some": function("says_nothing")})([Answer("")]).totals == [None]


def test_a_function_keeps_its_state_between_calls(judge, function):
    one = judge({"calls": function("calls")})
    assert [one(ANSWERS).totals[0] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "why", "row"),
    [
        ("raises", "raised RuntimeError: cannot judge 5", "row row-1"),
        ("raises_together", "raised RuntimeError: too many", "rows row-0 to row-3"),
        ("column", "wants `nosuch`", "row row-0"),
        ("nan", "returned nan", "row row-1"),
        ("infinite", "returned inf", "row row-1"),
        ("count", "returned 1 scores for 4 answers", "rows row-0 to row-3"),
        ("hangs", "did not return within 1 s", "rows row-0 to row-3"),
        ("backtracks", "did not return within 1 s", "rows row-0 to row-3"),
        ("leaves", "exit status 7", "row row-0"),
        ("crashes", "exit status -6", "row row-0"),
        ("sets", "returned 1 scores", "rows row-0 to row-3"),
    ],
)
def test_a_reward_that_fails_stops_the_run_with_its_name_and_the_row(judge, function, name, why, row):
    one = judge({"good": Math(), "mine": function(name)}, timeout=1)
    one._workers["mine"].timeout = 20 if name not in ("hangs", "backtracks") else 1
    began = time.monotonic()
    with pytest.raises(GymError) as raised:
        one(ANSWERS)
    assert time.monotonic() - began < 15
    text = str(raised.value)
    assert "reward `mine`" in text and why in text and text.startswith(row), text
    assert "on_error: mask" in text and len(text.splitlines()) <= 4


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("raises", {1}),
        ("nan", {1}),
        ("count", {0, 1, 2, 3}),
        ("hangs", {0, 1, 2, 3}),
        ("raises_together", {0, 1, 2, 3}),
    ],
)
def test_or_such_answers_are_masked_and_counted(judge, function, name, lost):
    one = judge({"good": Math(), "mine": function(name)}, timeout=1, on_error="mask")
    found = one(ANSWERS)
    assert found.failures == {"good": 0, "mine": len(lost)}
    assert {i for i, total in enumerate(found.totals) if total is None} == lost
    assert found.scores["good"] == [1, 0, 0, 1]
    assert [found.scores["mine"][i] for i in sorted({0, 1, 2, 3} - lost)] == [1.0] * (4 - len(lost))
    assert one(ANSWERS).failures == found.failures, "it is asked again after it failed"


def test_what_a_function_prints_is_no_score(judge, function):
    assert judge({"mine": function("prints")})(ANSWERS).totals == [1, 1, 1, 1]


def test_a_reward_in_this_process_that_fails_is_named_too(judge):
    for row in ({}, {"answer": ""}):
        with pytest.raises(GymError, match="reward `math` raised ValueError: column `answer`") as raised:
            judge({"math": Math()})([ANSWERS[0], Answer("5", row, id="bad")])
        assert str(raised.value).startswith("row bad")
    masked = judge({"math": Math()}, on_error="mask")([ANSWERS[0], Answer("5", {}, id="bad")])
    assert masked.totals == [1, None] and masked.failures == {"math": 1}


def test_a_row_that_is_no_json_cannot_go_to_another_process_and_is_named(judge, function):
    with pytest.raises(GymError, match="a set cannot be handed to another process") as raised:
        judge({"mine": function("fine")})([ANSWERS[0], Answer("x", {"tags": {1, 2}}, id="odd")])
    assert str(raised.value).startswith("row odd")


def test_a_hang_does_not_keep_the_process_from_ending(function):
    reference = function("backtracks").function
    script = (
        "from gym_rl import Answer\nfrom gym_rl.rewards.judge import Judge\nfrom gym_rl.rewards import PythonFunction\n"
        f"Judge({{'mine': PythonFunction(function={reference!r})}}, timeout=0.5)([Answer('a', id='r')])"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "did not return within 0.5 s" in done.stderr and time.monotonic() - began < 20


class Waits(Reward):
    """Waits in this process."""

    def build(self):
        """Return a score that takes its time."""
        return lambda answers: time.sleep(2)


def test_a_reward_in_this_process_that_hangs_does_not_hang_the_run(judge):
    began = time.monotonic()
    with pytest.raises(GymError, match=r"reward `waits` did not return within 0\.3 s"):
        judge({"good": Math(), "waits": Waits()}, timeout=0.3)(ANSWERS)
    assert time.monotonic() - began < 1.5


def test_names_are_those_of_recipes():
    rewards = [Math(), PythonFunction(function="a:b"), Length(), PythonFunction(function="c:d"), Exact()]
    assert list(named(rewards)) == ["math", "python", "length", "python-2", "exact"]
    assert list(named(rewards).values()) == rewards


def test_a_worker_is_a_function_with_a_deadline():
    worker = Worker("time:sleep", 0.5)
    assert worker(0.01) is None
    first = worker._process.pid
    with pytest.raises(TimeoutError, match=r"time:sleep did not return within 0\.5 s"):
        worker(60)
    with pytest.raises(Raised, match="TypeError"):
        worker("soon")
    assert worker._process.pid != first
    worker.close()
    with pytest.raises(Raised, match="no_such"):
        Worker("time:no_such", 1)()


def test_a_worker_takes_and_returns_more_than_a_pipe_holds():
    worker = Worker("builtins:sorted", 20)
    numbers = list(range(200_000, 0, -1))
    assert worker(numbers) == numbers[::-1]
    worker.close()

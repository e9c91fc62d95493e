"""Several rewards over one list of completions, and every way in which one of them can fail."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import ClassVar

import pytest

from gym_core.errors import GymError
from gym_core.loading import load_component
from gym_rewards import Exact, Format, Length, Math, Overlong, PythonFunction, RewardInput
from gym_rewards.reward import Reward
from gym_rewards.reward_manager import RewardManager
from gym_rewards.reward_names import called, named
from gym_rewards.worker_process import Raised, Worker
from gym_testkit.metadata_files import installed_in, write_distribution

ANSWERS = [
    RewardInput(text, {"answer": "4"}, id=f"row-{n}", tokens=n) for n, text in enumerate(["4", "5", "", "four 4"])
]

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
def enormous(texts): return [-1e308 if t == "5" else 1.0 for t in texts]
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
def maps(texts): return {i: 1.0 for i, _ in enumerate(texts)}
def text(texts): return "1" * len(texts)
def typed(when, cost, raw, nested):
    return [float(when[0].minute == 4 and cost[0] * 10 == 1 and raw[0][1] == 255 and nested[0][0]["day"].day == 2)]
def everything(texts, **columns): return [float(len(columns.keys() & {"when", "cost", "raw", "tags", "nested"}))]
def tagged(texts, tags): return [1.0]
def splits(texts, made=[]):
    made.append(1)
    child = os.fork()
    if not child: return [-1.0] * len(texts)
    os.waitpid(child, 0)
    return [len(made)] * len(texts)
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
        made.append(RewardManager(rewards, **options))
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
    one = judge({"math": Math(), "format": Format(weight=0.2)}, timeout=60, on_error="mask")
    found = one([RewardInput("<think>6 * 7</think><answer>42</answer>", row={"answer": "#### 42"}, id="row-1")])
    assert found.scores == {"math": [1.0], "format": [1.0]} and found.totals == [1.2]
    assert found.failures == {"math": 0, "format": 0}


def test_no_answers_and_no_opinion(judge, function):
    assert judge({"some": function("says_nothing")})([]).totals == []
    assert judge({"some": function("says_nothing")})([RewardInput("")]).totals == [None]


def test_a_function_keeps_its_state_between_calls(judge, function):
    one = judge({"calls": function("calls")})
    assert [one(ANSWERS).totals[0] for _ in range(3)] == [1, 2, 3]


def test_a_child_of_a_function_that_returns_too_answers_nothing(judge, function):
    one = judge({"splits": function("splits")}, timeout=20)
    assert [one(ANSWERS).totals for _ in range(3)] == [[1] * 4, [2] * 4, [3] * 4]


@pytest.mark.parametrize(
    ("name", "why", "row"),
    [
        ("raises", "raised RuntimeError: cannot judge 5", "row row-1"),
        ("raises_together", "raised RuntimeError: too many", "rows row-0 to row-3"),
        ("column", "wants `nosuch`", "row row-0"),
        ("nan", "returned nan", "row row-1"),
        ("infinite", "returned inf", "row row-1"),
        ("enormous", "returned -1e+308", "row row-1"),
        ("count", "returned 1 scores for 4 completions", "rows row-0 to row-3"),
        ("hangs", "did not return within 1 s", "rows row-0 to row-3"),
        ("backtracks", "did not return within 1 s", "rows row-0 to row-3"),
        ("leaves", "exit status 7", "row row-0"),
        ("crashes", "exit status -6", "row row-0"),
        ("sets", "returned '{1.0}'", "row row-0"),
        ("maps", "returned '{0: 1.0}'", "row row-0"),
        ("text", "returned '1'", "row row-0"),
    ],
)
def test_a_reward_that_fails_stops_the_run_with_its_name_and_the_row(judge, function, name, why, row):
    one = judge({"good": Math(), "mine": function(name)}, timeout=1)
    one.scorers["mine"].worker.timeout = 20 if name not in ("hangs", "backtracks") else 1
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
        with pytest.raises(
            GymError, match=r"reward `math` \(gym-rewards \S+\) raised ValueError: column `answer`"
        ) as raised:
            judge({"math": Math()})([ANSWERS[0], RewardInput("5", row, id="bad")])
        assert str(raised.value).startswith("row bad")
    masked = judge({"math": Math()}, on_error="mask")([ANSWERS[0], RewardInput("5", {}, id="bad")])
    assert masked.totals == [1, None] and masked.failures == {"math": 1}


@pytest.mark.parametrize("error", [TimeoutError("the service hung up"), SystemExit(3)])
def test_what_a_reward_in_this_process_raises_is_said_as_it_is(judge, error):
    """That a service is late is not that the reward is; and one row costs one completion."""

    def score(inputs):
        if any(item.id == "row-1" for item in inputs):
            raise error
        return [1.0] * len(inputs)

    one = judge({"math": Math()}, on_error="mask")
    one.scorers["math"] = score
    found = one(ANSWERS)
    assert found.totals == [1, None, 1, 1]
    assert found.reasons["math"].endswith(f"raised {type(error).__name__}: {error}")


MOMENT = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def test_a_row_goes_to_another_process_as_far_as_it_is_asked_for(judge, function):
    """A date is a date there too; what cannot go there matters to those alone who ask for it."""
    row = {
        "when": MOMENT,
        "cost": Decimal("0.10"),
        "raw": b"\x00\xff",
        "tags": {1, 2},
        "nested": [{"day": date(2026, 1, 2)}],
    }
    answers = [ANSWERS[0], RewardInput("x", row, id="odd")]
    assert judge({"mine": function("fine")})(answers).totals == [1, 1]
    assert judge({"mine": function("typed")})(answers[1:]).totals == [1]
    assert judge({"mine": function("everything")})(answers[1:]).totals == [4]
    with pytest.raises(GymError, match="wants `tags`, which is neither an option nor a column that can be handed on"):
        judge({"mine": function("tagged")})(answers[1:])


def test_a_column_that_nobody_asks_for_is_not_sent(judge, function):
    one = judge({"fine": function("fine"), "typed": function("typed"), "everything": function("everything")})
    assert [one.scorers[name].columns for name in one.rewards] == [[], ["when", "cost", "raw", "nested"], None]


def test_a_function_is_imported_when_the_judge_is_made(judge, function):
    with pytest.raises(GymError) as raised:
        judge({"mine": PythonFunction(function="no_such_file.py:judge")}, on_error="mask")
    text = str(raised.value)
    assert "reward `mine` (gym-rewards " in text and "no_such_file.py" in text and len(text.splitlines()) <= 4
    with pytest.raises(GymError, match="cannot be loaded"):
        judge({"mine": function("no_such_function")}, on_error="mask")


TRL = """
async def checks(prompts, completions, completion_ids, answer, log_metric, log_extra, trainer_state, **kwargs):
    log_metric("mean_length", sum(map(len, completion_ids)) / len(completion_ids))
    log_extra("answer", answer)
    return [None if not text else trainer_state.global_step + float(text == true) for text, true in zip(completions, answer)]
"""


def test_a_function_written_for_trl_works_unchanged(judge, tmp_path):
    (tmp_path / "mine.py").write_text(TRL)
    rewards = {"mine": PythonFunction(function=f"{tmp_path}/mine.py:checks")}
    one = judge(rewards, state=lambda: {"global_step": 7, "max_steps": 9, "epoch": 0.5})
    found = one([RewardInput(each.text, each.row, token_ids=[5] * n) for n, each in enumerate(ANSWERS)])
    assert found.totals == [8, 7, None, 7] and found.metrics == {"mine/mean_length": 1.5}


def test_a_function_cannot_log_under_the_name_of_what_is_always_logged(judge, tmp_path):
    (tmp_path / "mine.py").write_text(TRL.replace('"mean_length"', '"mean"'))
    rewards = {"mine": PythonFunction(function=f"{tmp_path}/mine.py:checks")}
    with pytest.raises(GymError, match="`log_metric` cannot log `mean`"):
        judge(rewards, state=lambda: {"global_step": 7})([RewardInput(each.text, each.row) for each in ANSWERS])


def test_a_hang_does_not_keep_the_process_from_ending(function):
    reference = function("backtracks").function
    script = (
        "from gym_rewards import RewardInput\nfrom gym_rewards.reward_manager import RewardManager\n"
        "from gym_rewards import PythonFunction\n"
        f"RewardManager({{'mine': PythonFunction(function={reference!r})}}, timeout=0.5)([RewardInput('a', id='r')])"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "did not return within 0.5 s" in done.stderr and time.monotonic() - began < 20


def test_a_worker_whose_caller_was_killed_says_nothing():
    command = [sys.executable, "-c", "from gym_rewards.worker_process import serve; serve()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        worker.stdout.close()
        worker.stdin.write(b'[9, "builtins:len"]\n')
        worker.stdin.close()
        assert (worker.stderr.read(), worker.wait()) == (b"", 0)


class Waits(Reward):
    """Waits in this process."""

    def build(self):
        """Return a score that takes its time."""
        return lambda answers: time.sleep(2)


def test_a_reward_in_this_process_that_hangs_does_not_hang_the_run(judge):
    began = time.monotonic()
    with pytest.raises(GymError, match=r"reward `waits` \(\S+\) did not return within 0\.3 s"):
        judge({"good": Math(), "waits": Waits()}, timeout=0.3)(ANSWERS)
    assert time.monotonic() - began < 1.5


class Patient(Waits):
    """Gives each answer a time of its own."""

    own_timeout: ClassVar[bool] = True

    def build(self):
        """Return a score that needs longer than all answers together may."""
        return lambda answers: [time.sleep(0.3) or float(answer.text == "4") for answer in answers]


def test_a_reward_that_bounds_each_answer_is_waited_for_however_many_are_hostile(judge):
    assert judge({"code": Patient()}, timeout=0.5)(ANSWERS).totals == [1, 0, 0, 0]


def test_answers_are_told_apart_by_what_does_not_judge_their_length(judge):
    """Eight wrong answers of which one is too long are all as good, whoever judges the length."""

    class Brief(Waits):
        judges_length: ClassVar[bool] = True

        def build(self):
            return lambda answers: [-0.1 * answer.tokens for answer in answers]

    wrong = [RewardInput("5", {"answer": "4"}, tokens=n) for n in range(3)]
    rewards = {"math": Math(weight=2), "overlong": Overlong(maximum=2, buffer=2), "brief": Brief()}
    found = judge(rewards)(wrong)
    assert len(set(found.totals)) == 3 and found.compared == [0, 0, 0]
    assert judge(rewards)([*wrong, RewardInput("4", {"answer": "4"})]).compared == [0, 0, 0, 2]
    assert judge(rewards, metric="brief")(wrong).compared == [0, -0.1, -0.2]
    assert judge({"brief": Brief()})(wrong).compared == [0, -0.1, -0.2]  # nothing else is there


def test_an_answer_of_which_only_the_length_is_judged_is_not_judged(judge, function):
    rewards = {"mine": function("says_nothing"), "overlong": Overlong(maximum=2, buffer=2)}
    assert judge(rewards)([RewardInput("", tokens=2), RewardInput("a", tokens=1)]).totals == [None, 0.5]


def test_a_reward_that_is_exported_from_elsewhere_keeps_its_name(tmp_path):
    """The entry point leads to its class by another path than the class gives of itself."""
    own = "from gym_rewards import Reward\nclass Scored(Reward):\n    'Scores.'\n"
    modules = {"acme_scores": own, "acme_rewards": "from acme_scores import Scored\n"}
    write_distribution(tmp_path, "gym-acme", {"gym.rewards": {"polite": "acme_rewards:Scored"}}, modules)
    with installed_in(tmp_path):
        _, cls = load_component("rewards", "polite")
        assert list(named([cls(), cls()])) == ["polite", "polite-2"]
        assert called(cls()) == "`polite` (gym-acme 1.0)"


def test_names_are_those_of_recipes():
    rewards = [Math(), PythonFunction(function="a:b"), Length(), PythonFunction(function="c:d"), Exact()]
    assert list(named(rewards)) == ["math", "python", "length", "python-2", "exact"]
    assert list(named(rewards).values()) == rewards


def test_a_worker_is_a_function_with_a_deadline():
    worker = Worker("time:sleep", 0.5)
    assert worker(0.01) is None
    first = worker.process.pid
    with pytest.raises(TimeoutError, match=r"time:sleep did not return within 0\.5 s"):
        worker(60)
    with pytest.raises(Raised, match="TypeError"):
        worker("soon")
    assert worker.process.pid != first
    worker.close()
    with pytest.raises(Raised, match="no_such"):
        Worker("time:no_such", 1)()


def test_a_worker_takes_and_returns_more_than_a_pipe_holds():
    worker = Worker("builtins:sorted", 20)
    numbers = list(range(200_000, 0, -1))
    assert worker(numbers) == numbers[::-1]
    worker.close()


def test_an_error_with_a_place_says_why_too():
    def refuses(inputs):
        raise GymError("has no licence", where="https://judge.example", fix="buy one")

    class Refusing(Reward):
        """Says where it fails."""

        def build(self):
            return refuses

    with pytest.raises(GymError, match=r"raised https://judge\.example: has no licence") as raised:
        RewardManager({"refusing": Refusing()})(ANSWERS[:1])
    assert "buy one" in str(raised.value)

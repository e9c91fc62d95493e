"""Verifiable mathematics: what is read as a number, where a result is found, and what is equal."""

from __future__ import annotations

import json
import os
import time
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import pytest

from gym_core.errors import PluginError
from gym_rewards import Math, RewardInput
from gym_rewards.builtin.math_verifier import equal, reference, results
from gym_rewards.builtin.number_parsing import readings

GSM8K = Path(os.environ.get("GYM_DATA", Path(__file__).parents[4] / "shared" / "data")) / "gsm8k_train.jsonl"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("+42", 42),
        ("-42", -42),
        ("- 42", -42),
        ("\u221242", -42),  # a minus sign
        ("42.", 42),
        ("42.50", Fraction(85, 2)),
        (".5", Fraction(1, 2)),
        ("0.1", Fraction(1, 10)),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("1{,}000", 1000),
        ("1\\,000", 1000),
        ("1 000 000", 1_000_000),
        ("1e5", 100_000),
        ("2.5E-3", Fraction(1, 400)),
        ("3\\times 10^{8}", 300_000_000),
        ("3 \\cdot 10^2", 300),
        ("3/4", Fraction(3, 4)),
        ("-3/4", Fraction(-3, 4)),
        ("6 / 8", Fraction(3, 4)),
        ("2 1/2", Fraction(5, 2)),
        ("-2 1/2", Fraction(-5, 2)),
        ("½", Fraction(1, 2)),
        ("3½", Fraction(7, 2)),
        ("$\\frac{1}{2}$", Fraction(1, 2)),
        ("\\frac12", Fraction(1, 2)),
        ("\\dfrac{3}{4}", Fraction(3, 4)),
        ("-\\tfrac{3}{4}", Fraction(-3, 4)),
        ("\\frac{-3}{4}", Fraction(-3, 4)),
        ("1\\frac{1}{2}", Fraction(3, 2)),
        ("(5)", 5),
        ("-(5)", -5),
        ("{5}", 5),
        ("\\left( 5 \\right)", 5),
        ("$1,200.00", 1200),
        ("-$5", -5),
        ("$-5", -5),
        ("\\$5", 5),
        ("€7", 7),
        ("5 apples", 5),
        ("5cm", 5),
        ("5 cm^2", 5),
        ("5\\text{ cm}^2", 5),
        ("60 km/h", 60),
        ("60\\text{ km/h}", 60),
        ("9.8 m/s^2", Fraction(49, 5)),
        ("\\$15/hour", 15),
        ("1/2 mile / minute", Fraction(1, 2)),
        ("90^\\circ", 90),
        ("90°", 90),
        ("5 million", 5_000_000),
        ("5 hundred thousand", 500_000),
        ("2 dozen", 2),
        ("5 in", 5),
        ("5 logs", 5),
        ("2nd", 2),
        ("٤٢", 42),  # Arabic-Indic digits
        ("\uff14\uff12", 42),  # full-width digits
        ("1e400", 10**400),
    ],
)
def test_reads_as_one_number(text, value):
    assert readings(text) == {Fraction(value)}


def test_a_percentage_has_two_readings():
    assert readings("50%") == readings("50\\%") == {Fraction(50), Fraction(1, 2)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-",
        "x",
        "5x",
        "5 x",
        "2\\pi",
        "2 pi",
        "2π",
        "5²",
        "5^2",
        "2 or 3",
        "1, 2",
        "12,34",
        "1/0",
        "1/2/3",
        "1..2",
        "0.5.5",
        "1e999999",
        "1e-999999",
        "9" * 5000,
        "\\sqrt{2}",
        "2\\sqrt{3}",
        "3i",
        "2xy",
        "2 yz",
        "2ab",
        "2 log x",
        "2 a/b",
        "2 m/k",
        "2/ab",
        "2 ab/c",
        "2/n",
        "2/pi",
        "3 dy/dx",
        "2 km/x",
        "60 km/h/2",
        "60 km/h or 3",
        "2sin x",
        "2 ln",
        "7 mod n",
        "4 squared",
        "2 cubed",
        "4 factorial",
        "nan",
        "inf",
        "0x10",
        "5 < 6",
        "５²",
        "\\frac{1}{}",
        "1+1",
    ],
)
def test_is_no_number(text):
    assert readings(text) == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("so \\boxed{\\frac{1}{2}}, done", ["\\frac{1}{2}"]),
        ("\\boxed{1} no, \\boxed{2}", ["2"]),
        ("\\boxed{\\text{a {b} c}}", ["\\text{a {b} c}"]),
        ("\\boxed{7} and \\boxed{8", ["7"]),  # cut off
        ("\\boxed {3}", ["3"]),
        ("\\boxed{9} #### 10", ["9"]),
        ("12\n#### 42\nmore 7", ["42"]),
        ("The answer is 3.5. That took 7 steps", ["3.5"]),
        ("Final answer: **42**", ["42"]),
        ("The answer is 1 or 2.", ["1 or 2"]),
        ("20-4=16", ["20-4=16", "16"]),
        ("down to -5 degrees", ["down to -5 degrees", "-5"]),
        ("", []),
        ("\n \t", []),
    ],
)
def test_where_a_result_is_found(text, found):
    assert results(text) == found


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("0.5", "1/2", True),
        ("0.3333", "1/3", False),
        ("1234", "1,234", True),
        ("x = 5", "5", True),
        ("5", "x=5", True),
        ("10 - 4 = 6", "6", True),
        ("50%", "50", True),
        ("50%", "0.5", True),
        ("50", "0.5", False),
        ("5%", "50%", False),
        ("-5", "5", False),
        ("x + 1", "x+1", True),
        ("\\dfrac{x}{2}", "\\frac{x}{2}", True),
        ("\\left(1, 2\\right)", "(1,2)", True),
        ("(2,1)", "(1,2)", False),
        ("(B)", "b", True),
        ("C", "B", False),
        ("\\text{yes}", "yes", True),
        ("1 or 2", "2", False),
        ("10000000000000000001", "10000000000000000000", False),
        ("0.1", "0.10000000000000000555", False),
        ("x > 5", "5", False),
        ("2xy", "2", False),
        ("2ab", "2xy", False),
        ("2xy", "2 xy", True),
        ("x = 5 or x = 3", "3", False),
        ("x = 1, y = 2", "2", False),
        ("x=1; y=2", "y=2", False),
        ("a = 1 and b = 2", "2", False),
        ("x = 1, y = 2", "x=1, y=2", True),
        ("f(x, y) = 5", "5", True),
        ("x, y = 5, 5 = y", "5", False),
        ("total = 3 + 3 = 6", "6", True),
        ("(x, y) = (1, 2)", "(1,2)", True),
        ("x = 1,234", "1234", True),
        ("sum of x=1,y=2 is = 3", "3", False),
    ],
)
def test_what_is_equal(found, expected, same):
    assert equal(found, expected) is same


def test_scores_against_the_row():
    row = {"answer": "48/2 = <<48/2=24>>24 clips.\n#### 72"}
    said = ["It is \\boxed{72}.", "#### 72", "so 72 clips", "72.0", "**72**", "71", "", "\\boxed{}", "72 and then 71"]
    assert Math().build()([RewardInput(text, row) for text in said]) == [1, 1, 1, 1, 1, 0, 0, 0, 0]


def test_marked_alone_counts_where_that_is_asked_for():
    answers = [RewardInput("72", {"answer": 72}), RewardInput("The answer is 72", {"answer": 72})]
    assert Math(marked=True).build()(answers) == [0, 1]


def test_the_column_may_hold_a_number_or_several_results_and_have_another_name():
    answers = [
        RewardInput("0.1", {"solution": 0.1}),
        RewardInput("-3", {"solution": ["3", "-3"]}),
        RewardInput("1", {"solution": [2, 3]}),
    ]
    assert Math(answer="solution").build()(answers) == [1, 1, 0]


@pytest.mark.parametrize(
    "row", [{}, {"answer": None}, {"answer": ""}, {"answer": "  "}, {"answer": []}, {"question": "1?"}]
)
def test_a_row_without_a_result_is_an_error_that_says_so(row):
    with pytest.raises(ValueError, match=r"answer|blank"):
        Math().build()([RewardInput("1", row)])


@pytest.mark.parametrize(
    "text",
    [
        "9" * 300_000,
        "1," * 150_000,
        "111 " * 75_000 + "/",
        "\\boxed{" * 40_000,
        "{" * 300_000,
        "\\text{" * 50_000,
        "the answer is " * 20_000,
        "answer" + " " * 300_000,
        "-" * 300_000,
        "1/" * 150_000,
        "=" * 300_000,
        "\\frac{" * 50_000,
        "\ud800 42",
        "\x00" * 1000,
    ],
    ids=range(14),
)
def test_hostile_text_takes_no_time_and_earns_nothing(text):
    began = time.monotonic()
    assert Math().build()([RewardInput(text, {"answer": "43"})]) == [0.0]
    assert time.monotonic() - began < 2


@pytest.mark.skipif(not GSM8K.exists(), reason="no real data: set GYM_DATA")
def test_every_solution_of_gsm8k_is_right_by_its_own_reference_and_wrong_by_the_next_ones():
    rows = [json.loads(line) for line in GSM8K.read_text(encoding="utf-8").splitlines()]
    assert all(len(readings(reference(row["answer"]))) == 1 for row in rows)
    score = Math().build()
    assert sum(score([RewardInput(row["answer"], row) for row in rows])) == len(rows) == 7473
    moved = [RewardInput(row["answer"].split("####")[0], {"answer": str(-(10**9))}) for row in rows]
    assert sum(score(moved)) == 0


def test_latex_is_refused_where_math_verify_is_absent():
    if find_spec("math_verify"):
        pytest.skip("math-verify is installed")
    with pytest.raises(PluginError, match=r"gym-rewards\[math\]"):
        Math(latex=True).build()


def test_latex_is_compared_by_math_verify():
    pytest.importorskip("math_verify")
    score = Math(latex=True, timeout=3).build()
    pairs = [("\\sqrt{8}", "2\\sqrt{2}"), ("x+1", "1+x"), ("\\{2, 1\\}", "\\{1, 2\\}"), ("\\sqrt{8}", "3"), ("5x", "5")]
    assert score([RewardInput(f"\\boxed{{{said}}}", {"answer": true}) for said, true in pairs]) == [1, 1, 1, 0, 0]
    bomb = RewardInput("\\boxed{9^{9^{9^{9}}}!}", {"answer": "x+1"})
    began = time.monotonic()
    assert score([bomb, RewardInput("\\boxed{x+1}", {"answer": "1+x"})]) == [0, 1]
    assert time.monotonic() - began < 30


def test_latex_changes_nothing_unless_it_is_asked_for():
    assert Math().build()([RewardInput("\\boxed{\\sqrt{8}}", {"answer": "2\\sqrt{2}"})]) == [0]


@pytest.mark.parametrize(
    ("text", "options", "right"),
    [
        (r"<think>\boxed{41}</think> The answer is 42.", {}, True),
        (r"<think>\boxed{42}</think> The answer is 41.", {}, False),
        (r"It may be \boxed{41}.</think>42", {}, True),  # where the template opened the thought
        (r"<think>So \boxed{42}. But wait", {}, False),
        (r"<think>\boxed{42}</think>", {}, False),
        ("<think>41</think>42 <think>or 41", {}, True),
        ("<think>a</think><think>#### 41</think>#### 42", {}, True),
        (r"\boxed{42}", {}, True),
        (r"<reasoning>\boxed{41}</reasoning>42", {"thought": "reasoning"}, True),
        (r"<think>\boxed{42}</think>41", {"thought": ""}, True),
        ("<think><answer>41</answer></think><answer>42</answer> and 43", {"section": "answer"}, True),
        ("<think><answer>42</answer></think>42", {"section": "answer"}, False),
        ("<answer></answer>42", {"section": "answer"}, False),
    ],
)
def test_what_stands_behind_the_thoughts_is_judged(text, options, right) -> None:
    assert Math(**options).build()([RewardInput(text, {"answer": "42"})]) == [float(right)]

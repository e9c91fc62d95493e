"""What programs earn: the form of an answer, every form of tests, and time that is shared among all."""

from __future__ import annotations

import logging
import sys
import time

import pytest

from gym_core.errors import GymError
from gym_rewards import Code, RewardInput, sandbox
from gym_rewards.builtin.code_execution import program
from gym_rewards.builtin.unit_tests import Assertions, Call, Dialogue
from gym_rewards.builtin.unit_tests import tests as read
from gym_rewards.reward_manager import RewardManager
from gym_rewards.sandbox import Verdict, seccomp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are confined by the kernel of Linux alone")

TEST = "assert double(21) == 42"
DOUBLE = "def double(x):\n    return 2 * x\n"
AMPLE = sandbox.Limits(seconds=20)


def score(source, test=TEST, row=None, **options):
    config = Code(timeout=options.pop("timeout", 10), **options)
    return config.build()([RewardInput(f"Here:\n```python\n{source}\n```\nDone.", {"tests": test, **(row or {})})])[0]


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_a_run_refuses_where_programs_cannot_be_confined_as_asked(isolation, monkeypatch):
    monkeypatch.setattr(seccomp, "program", lambda threads=True: b"no filter of system calls")
    sandbox.level.cache_clear()
    with pytest.raises(GymError, match=f"cannot be confined by {isolation} here: .*Invalid argument"):
        Code(isolation=isolation).build()
    sandbox.level.cache_clear()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```python\na = 1\n```", "a = 1\n"),
        ("```\na = 1\n```\nthen\n```py\na = 2\n```", "a = 2\n"),
        ("```python\na = 1\n```\n```bash\nls\n```", "a = 1\n"),
        ("a = 1", "a = 1"),
        ("```rust\nfn\n```", ""),
        ("```python\nx = '```'\n```", "x = '```'\n"),
        ("```python\ncut off", "```python\ncut off"),
        ("", ""),
        ("```" * 100_000, "```" * 100_000),
    ],
    ids=range(9),
)
def test_the_program_is_the_last_block_of_python(text, found):
    assert program(text) == found


def test_forms_of_tests():
    pair = Dialogue("1", "2")
    assert read("assert f()") == [Assertions("assert f()")]
    assert read(["assert f()", {"input": "1", "output": "2"}]) == [Assertions("assert f()"), pair]
    assert read({"inputs": ["1", ["a", 3]], "outputs": ["2", "b"]}) == [pair, Dialogue("a\n3", "b")]
    assert read('[{"input": "1", "output": "2"}]') == [pair]
    assert read({"input": ["1", "1"], "output": ["2", "2"]}) == [pair, pair]
    for wrong in (3, [], {}, " ", {"input": "1"}, {"inputs": ["1"], "outputs": []}):
        with pytest.raises(ValueError):
            read(wrong)


def test_a_program_that_passes_earns_one():
    assert score(DOUBLE) == 1
    assert score("print(2 * int(input()))", {"input": "21\n", "output": "42"}) == 1
    assert (
        score(
            "import sys\nfor line in sys.stdin: print(line.strip()[::-1], '')",
            {"input": "ab\ncd", "output": "ba\ndc\n"},
        )
        == 1
    )


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def double(x):\n    return x",
        "double = 3",
        "def double(x): exit(0)",
        "def double(x:",
        "1/0",
        "\x00",
        "x = '\ud800'",
    ],
)
def test_a_program_that_fails_earns_nothing(source):
    assert score(source) == 0


def test_an_empty_answer_earns_nothing_and_a_row_without_tests_is_an_error():
    assert Code().build()([RewardInput("", {"tests": TEST})]) == [0]
    with pytest.raises(ValueError, match="tests"):
        Code().build()([RewardInput("x", {})])


def test_the_share_of_passed_tests_or_all_or_nothing():
    suite = ["assert double(1) == 2", "assert double(2) == 5", "assert double(3) == 6", "assert double(4) == 8"]
    assert score(DOUBLE, suite, partial=True) == 0.75
    assert score(DOUBLE, suite) == 0
    pairs = {"inputs": ["1", "2"], "outputs": ["1", "4"]}
    assert score("print(int(input()))", pairs, partial=True) == 0.5


def test_answers_keep_their_order_when_they_are_tested_at_once():
    texts = [DOUBLE, "def double(x): return 0", "while True: pass", DOUBLE, ""]
    answers = [RewardInput(f"```python\n{text}\n```", {"tests": TEST}) for text in texts]
    assert Code(timeout=1, parallel=3).build()(answers) == [1, 0, 0, 1, 0]


def test_tests_call_functions_with_data_of_every_kind():
    level = sandbox.level("namespaces")
    source = """
import math
from dataclasses import dataclass
def same(x, *more, **options): return (x, *more, *options.values())
def sort(xs): xs.sort()
def rows(n):
    for i in range(n): yield {i: (i, 1.5, 2j, b"x", None, True, {1}, frozenset([2]))}
def count():
    i = 0
    while True:
        yield i
        i += 1
def few(n): yield from range(n)
def fails(x): raise ValueError("no")
@dataclass
class Stack:
    items: list
    def push(self, x): self.items.append(x); return self
    def __add__(self, other): return Stack(self.items + other.items)
    def __mul__(self, n): return Stack(self.items * n)
    def __setitem__(self, i, x): self.items[i] = x
    def __delitem__(self, i): del self.items[i]
    def __len__(self): return len(self.items)
PI = math.pi
"""
    test = """
def check(f):
    assert f(1) == (1,) and f([1, "ü"], 2, k={3}) == ([1, "ü"], 2, {3})
check(same)
xs = [3, 1, 2]
sort(xs)
assert xs == [1, 2, 3]
assert list(rows(2)) == [{i: (i, 1.5, 2j, b"x", None, True, {1}, frozenset([2]))} for i in range(2)]
assert type(same(True)[0]) is bool and same(float("inf")) == (float("inf"),) and same(10**50) == (10**50,)
try:
    fails(1)
except ValueError as error:
    assert str(error) == "no"
else:
    assert False
stack = Stack([1])
assert stack.push(2).items == [1, 2] and len(stack) == 2 and stack != 2
assert (stack + Stack([3])).items == [1, 2, 3] and not Stack([]) and Stack([0])
assert (stack * 2).items == [1, 2, 1, 2] and len(stack + stack) == 4
stack[0] = 5
del stack[1]
stack.name = "mine"
assert stack.items == [5] and stack.name == "mine"
lines = count()
assert next(lines) == 0 and list(itertools.islice(lines, 2)) == [1, 2] and next(few(1)) == 0 and next(few(0), 7) == 7
assert math.isclose(PI, 3.14159, rel_tol=1e-5)
"""
    assert sandbox.examine(source, test, AMPLE, level) is Verdict.PASSED
    assert sandbox.examine(source, test + "\nassert same(1) == (2,)", AMPLE, level) is Verdict.FAILED


AS_ELSEWHERE = {
    "exit": ("print(1)\nexit()", "1"),
    "quit": ("print(1)\nquit(0)", "1"),
    "annotations that are read": ("def f(x: int) -> None: pass\nprint(f.__annotations__['x'] is int)", "True"),
    "numbers of many digits": ("print(str(10**4999)[:3], int('9' * 5000) % 10)", "100 9"),
}


@pytest.mark.parametrize("name", AS_ELSEWHERE)
def test_a_program_is_run_as_python_runs_it(name):
    source, printed = AS_ELSEWHERE[name]
    assert score(source, {"input": "", "output": printed}) == 1


def test_a_program_whose_functions_are_called_is_run_as_python_runs_it():
    source = "def double(x: int):\n    if double.__annotations__ != {'x': int}: exit(1)\n    return 2 * x"
    big = "9" * 5000
    assert score(source) == 1
    assert (
        score(source, f"def test_it(n: int):\n    pass\nassert test_it.__annotations__ == {{'n': int}} and {TEST[7:]}")
        == 1
    )
    assert (
        score(
            "def double(x): return str(x)",
            {"fn_name": "double", "inputs": [[int("9" * 4000)]], "outputs": ["9" * 4000]},
        )
        == 1
    )
    assert score(f"def double(x): return int('{big}') + x", "assert double(1) == 10**5000") == 1


def test_names_that_the_harnesses_of_the_field_import_are_there():
    """The stub of a prompt says `List[int]`, and the answer repeats it without its import; LeetCode imports more."""
    stub = "def f(xs: List[int]) -> Optional[int]:\n    return max(xs)\n"
    pair = {"fn_name": "f", "inputs": ["[1, 2]"], "outputs": ["2"]}
    solution = """
class Solution:
    def f(self, xs: List[int]) -> int:
        count, later = Counter(xs), deque(xs)
        heappush(later2 := [3], 4), bisect_left(xs, 2), math.gcd(4, 6), inf, heapq.heapify(xs)
        return lru_cache(None)(lambda: max(accumulate(count[x] for x in xs)))()
"""
    assert score(stub + "print(f([1, 2]))", {"input": "", "output": "2"}) == 1
    assert score(stub, "assert f([1, 2]) == 2") == score(stub, pair) == score(solution, pair) == 1
    assert score("def f(xs): return math.floor(max(xs))", pair) == 0  # it is no answer for LeetCode
    assert score("Counter = max\nclass Solution:\n    def f(self, xs): return Counter(xs)", pair) == 1


def test_what_a_program_does_when_it_is_run_is_not_tested():
    assert score(f"{DOUBLE}if __name__ == '__main__':\n    print(double(int(input())))") == 1


def test_the_program_sees_neither_the_expected_output_nor_the_test():
    look = """
import gc, sys
def everything():
    found = [repr(o) for o in gc.get_objects() if isinstance(o, (dict, list, tuple))]
    frame = sys._getframe()
    while frame:
        found.append(repr(frame.f_locals))
        frame = frame.f_back
    return found
texts = everything()
word = bytes([115, 101, 115, 97, 109, 101]).decode()
print(word if any(word in text for text in texts) else 'nothing')
"""
    assert score(look, {"input": "", "output": "sesame"}) == 0
    assert score(look, {"input": "", "output": "nothing"}) == 1


WRONG = "def double(x):\n    return x + 1\nclass Solution:\n    def twice(self, x):\n        return x + 1\n"
RIGHT = "def double(x):\n    return 2 * x\nclass Solution:\n    def twice(self, x):\n        return 2 * x\n"
FORMS = {
    "MBPP": ["assert double(1) == 2", "assert double(4) == 8"],
    "HumanEval": "METADATA = {}\n\ndef check(candidate):\n    assert candidate(4) == 8\n",
    "HumanEval with its call": "def check(candidate):\n    assert candidate(4) == 8\ncheck(double)",
    "check that returns": "def check(candidate):\n    return candidate(4) == 8\n",
    "unittest": "import unittest\nclass Cases(unittest.TestCase):\n"
    "    def test_it(self):\n        self.assertEqual(double(4), 8)\n",
    "unittest as a script": "from unittest import TestCase, main\nclass Cases(TestCase):\n    def setUp(self):\n"
    "        self.x = 4\n    def test_it(self):\n        assert double(self.x) == 8\nif __name__ == '__main__':\n    main()\n",
    "functions of tests": "from solution import double\n\ndef test_it():\n    assert double(4) == 8\n",
    "a script": "if __name__ == '__main__':\n    assert double(4) == 8\n",
    "APPS": '{"fn_name": "double", "inputs": [[2], [4]], "outputs": [[4], [8]]}',
    "TACO": {"fn_name": "twice", "inputs": [[2], [4]], "outputs": [4, 8]},
    "LiveCodeBench": {"fn_name": "twice", "inputs": ["2", "4"], "outputs": ["4", "8"]},
    "LiveCodeBench's rows": [
        {"input": "4", "output": "8", "testtype": "functional", "metadata": {"func_name": "twice"}}
    ],
    "a row's entry point": [{"input": "4", "output": "8", "testtype": "functional"}],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_tests_tells_right_from_wrong(form):
    row = {"tests": FORMS[form], "entry_point": "double"}
    answers = [RewardInput(f"```python\n{source}\n```", row) for source in (RIGHT, WRONG)]
    assert Code(timeout=10).build()(answers) == [1, 0]


@pytest.mark.parametrize(
    ("printed", "expected", "passes"),
    [
        ("1.0 2\n", "1 2.00", True),
        ("  a b  \n\n", "a b", True),
        ("a\n\nb", "a\n\nb\n", True),
        ("1.0000001", "1", False),
        ("1 2", "1", False),
        ("1\n2", "1 2", False),
        ("nan", "nan", True),
        ("nan", "1", False),
        ("1e999999999", "2", False),
        ("sNaN", "1", False),
        ("1", "sNaN", False),
        ("a  b", "a b", False),
        ("", "1", False),
        ("01", "1", True),
        ("one", "1", False),
        ("1", "one", False),
        ("0.6666666666666666", "0.666667", True),
        ("66666666.66666667", "66666666.6667", True),
        ("0.66666", "0.666667", False),
        ("inf", "0.5", False),
        ("1e999999999", "0.5", False),
        ("1000000006.9", "1000000007", False),
        ("1000000006", "1000000007", False),
        ("11", "0011", False),
        ("0011", "0011", True),
        ("1_0", "10", False),
        ("0-5", "1", False),
        ("00" * 200_000 + "x", "1", False),
        ("-.5", "-0.5", True),
    ],
)
def test_what_is_printed_is_compared_by_lines_and_numbers(printed, expected, passes):
    assert score(f"print({printed!r})", {"input": "", "output": expected}) == passes


@pytest.mark.parametrize(
    ("returned", "expected", "passes"),
    [
        ("0.1 + 0.2", 0.3, True),
        ("0.3001", 0.3, False),
        ("[(0, 0.1 + 0.2)]", [[0, 0.3]], True),
        ("[0.3, 0]", [0.3], False),
        ("{1: 0.1 + 0.2}", {"1": 0.3}, True),
        ("{2: 0.3}", {"1": 0.3}, False),
        ("3.0000000001", 3, False),
        ("10**9 + 6", 10**9 + 7, False),
        ("float('inf')", 0.3, False),
        ("'0.3'", 0.3, False),
        ("3", 3.0, True),
    ],
)
def test_what_is_returned_is_compared_within_the_tolerance_where_a_decimal_is_expected(returned, expected, passes):
    test = {"fn_name": "f", "inputs": [[1]], "outputs": [expected]}
    assert score(f"def f(x): return {returned}", test) == passes


def test_without_tolerance_decimals_are_exact():
    assert score("print(2 / 3)", {"input": "", "output": "0.666667"}, tolerance=0) == 0
    assert score("print('0.5000')", {"input": "", "output": "0.5"}, tolerance=0) == 1
    assert score("def f(): return 0.1 + 0.2", {"fn_name": "f", "inputs": [[]], "outputs": [0.3]}, tolerance=0) == 0


def test_calls_compare_what_json_can_say():
    """Tuples are lists, keys of dictionaries are texts; several arguments, and what each data set wraps."""
    echo = "def f(*xs):\n    return xs\ndef g(d):\n    return {k + 1: v for k, v in d.items()}\n"
    assert read(
        {"fn_name": "f", "inputs": ['[1, "a\u2028"]\n{"k": null}'], "outputs": ['[[1, "a"], {"k": null}]']}
    ) == [Call("f", [[1, "a\u2028"], {"k": None}], [[[1, "a"], {"k": None}]])]
    assert score(echo, {"fn_name": "f", "inputs": ['[1, "a"]\n2'], "outputs": ['[[1, "a"], 2]']}) == 1
    assert score(echo, {"fn_name": "f", "inputs": [[1, 2]], "outputs": [[[1, 2]]]}) == 1
    assert score(echo, {"fn_name": "f", "inputs": [[1, 2]], "outputs": [[1, 3]]}) == 0
    assert score(echo, {"fn_name": "g", "inputs": [[{"1": 2}]], "outputs": [[{"2": 2}]]}) == 1
    assert score(echo, {"fn_name": "missing", "inputs": [[1]], "outputs": [[1]]}) == 0


IDLE = {
    "check without an entry point": ("def check(candidate):\n    assert candidate(1) == 2\n", "entry_point"),
    "a comparison without assert": (["double(4) == 8"], "needs `assert`"),
    "no Python": ("assert double(4) = 8", "no Python"),
    "arguments that nobody gives": ("def test_it(fixture):\n    assert double(4) == 8\n", "pytest"),
    "a package that is not there": ("import numpy as np\nassert np.all(double(4) == 8)\n", "numpy"),
    "no output": ({"inputs": ["1", "2"], "outputs": ["", "\n"]}, "does nothing"),
    "no result": ({"fn_name": "double", "inputs": [[1]], "outputs": [None]}, "does nothing"),
    "a function without a name": ([{"input": "4", "output": "8", "testtype": "functional"}], "fn_name"),
}


@pytest.mark.parametrize("name", IDLE)
def test_tests_that_would_judge_nothing_or_everything_wrong_are_an_error_of_the_row(name):
    value, why = IDLE[name]
    with pytest.raises(ValueError, match=why):
        score(DOUBLE, value)


@pytest.mark.parametrize(
    "test",
    [
        "x = 1",
        "assert True",
        "def helper():\n    assert double(1) == 2\n",
        "import unittest as u\nclass Cases(u.TestCase):\n    @u.skip('')\n    def test_it(self): assert double(1) == 2\n",
        "async def test_it():\n    assert double(1) == 2\n",
        "call = double",
    ],
)
def test_a_test_that_asks_the_program_for_nothing_earns_nothing_and_is_told(test, caplog):
    with caplog.at_level(logging.WARNING):
        assert score(DOUBLE, test) == 0
    assert "called nothing" in caplog.text


@pytest.mark.parametrize("name", ["tokenize", "bisect", "copy", "select", "sum", "hash"])
def test_a_function_may_be_called_like_one_of_python(name):
    """A module cannot be called, and where a test calls one name alone, that one is tested."""
    source, wrong = (f"def {name}(a, b):\n    return {result}" for result in ("a * b + b", "a + b"))
    check = "def check(candidate):\n    assert candidate(4, 5) == 25\n    assert candidate(4, b=0) == 0\n"
    for test in ([f"assert {name}(4, 5) == 25"], check):
        assert [score(answer, test, {"entry_point": name}) for answer in (source, wrong)] == [1, 0]


def test_an_entry_point_may_be_a_method_and_has_to_be_a_name():
    check = "def check(candidate):\n    assert candidate(x=4) == 8\n"
    assert score(RIGHT, check, {"entry_point": "Solution().twice"}) == 1
    with pytest.raises(ValueError, match="names no function: '4'"):
        score(RIGHT, check, {"entry_point": "4"})


def test_names_of_python_are_those_of_python_where_something_else_is_tested():
    forged = "def all(xs): return True\ndef sorted(xs): return [1]\nimport types\nmath = types.SimpleNamespace(isclose=max)\n"
    for test in ("assert all(f(x) == x for x in [1])", "assert sorted(f(1)) == [1]", "assert math.isclose(f(1), 1)"):
        assert score(forged + "def f(x): return [3]", test) == 0
        assert score(forged, test) == 0


RAISES = """
import json
class Own(ValueError): pass
class Worse(Own, KeyError):
    def __init__(self): super().__init__("worse", 1)
class Liar(Exception): pass
Liar.__name__ = "ValueError"
def own(): raise Own("mine")
def key(): return {}["a"]
def worse(): raise Worse
def read(): json.loads("x")
def decode(): b"\\xff".decode("ascii")
def file(): open("missing")
def liar(): raise Liar
def exits(): raise StopIteration("now")
"""


def test_tests_see_what_kind_of_error_a_program_raises():
    test = """
import unittest
class Cases(unittest.TestCase):
    def test_kinds(self):
        with self.assertRaises(ValueError) as caught: own()
        assert str(caught.exception) == "mine" and caught.exception.args == ("mine",)
        with self.assertRaises(KeyError) as caught: key()
        assert str(caught.exception) == "'a'" and caught.exception.args == ("a",)
        with self.assertRaises(ValueError) as caught: worse()
        assert caught.exception.args == ("worse", 1)
        with self.assertRaisesRegex(ValueError, "Expecting value"): read()
        with self.assertRaises(UnicodeDecodeError): decode()
        with self.assertRaises(FileNotFoundError): file()
        for call in (exits, liar):
            with self.assertRaises(Exception) as caught: call()
            assert type(caught.exception) is Exception
"""
    assert score(RAISES, test) == 1
    assert score(RAISES, "try: own()\nexcept KeyError: pass") == 0


def test_large_arguments_fit_into_little_memory():
    """Each number goes there and comes back, and none is more than a number on its way."""
    many = list(range(200_000))
    given = {"fn_name": "f", "inputs": [[many]], "outputs": [many[::-1]]}
    assert score("def f(xs): return xs[::-1]", given, memory=128) == 1


SETUP = "root = Node(1)\nroot.left = Node(2)\n"


def test_code_that_comes_before_the_tests():
    """MBPP has a column for it."""
    source = "class Node:\n    left = None\n    def __init__(self, x): self.x = x\n"
    right = source + "def depth(n): return n and 1 + depth(n.left) or 0"
    for test in (["assert depth(root) == 2"], "def check(f):\n    assert f(root) == 2"):
        row = {"entry_point": "depth", "test_setup_code": SETUP}
        assert (
            score(right, test, row)
            == score(right, test, {**row, "test_setup_code": "", "before": SETUP}, setup="before")
            == 1
        )
        assert score(source + "def depth(n): return 1", test, row) == 0
    with pytest.raises(ValueError, match="numpy"):
        score(right, test, {"entry_point": "depth", "test_setup_code": "import numpy"})


@pytest.mark.parametrize(
    "test",
    [
        "assert apply(lambda x: x + 1) == 3",
        "assert apply(int) == 2",
        "import uuid\nassert double(uuid.UUID(int=1)) == 1",
        "import unittest\nclass Cases(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(apply(abs), 2)\n",
        "try:\n    apply(abs)\nexcept TypeError:\n    pass\n",
    ],
)
def test_a_test_that_hands_over_what_is_no_data_earns_nothing_and_is_told(test, caplog):
    """The program is not to blame: whoever reads the log learns that the row is of no use here."""
    config = Code(timeout=10).build()
    source = f"{DOUBLE}def apply(f):\n    return f(2)\n"
    with caplog.at_level(logging.WARNING):
        assert config([RewardInput(f"```python\n{source}\n```", {"tests": test})]) == [0]
    assert config.metrics["checked_nothing"] == [1] and "no data" in caplog.text


def test_a_program_without_the_function_is_itself_to_blame():
    config = Code(timeout=10).build()
    assert config([RewardInput("x = 1", {"tests": TEST})]) == [0] and config.metrics["checked_nothing"] == [0]


VALUES = (
    "range(1, 9, 2)",
    "collections.deque([1, (2,)], 5)",
    "decimal.Decimal('1.50')",
    "fractions.Fraction(1, 3)",
    "datetime.date(2024, 2, 29)",
    "datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.timezone.utc)",
    "datetime.time(1, 2)",
    "datetime.timedelta(1, 2, 3)",
)


def test_values_of_the_standard_library_are_data():
    modules = "import collections, datetime, decimal, fractions\n"
    source = f"{modules}VALUES = [{', '.join(VALUES)}]\ndef f(i): return VALUES[i]\ndef g(i, x): return VALUES[i] == x"
    asserts = "\n".join(f"assert f({i}) == {value} and g({i}, {value})" for i, value in enumerate(VALUES))
    assert score(source, f"{modules}{asserts}") == 1
    assert score(source, f"{modules}assert f(2) == decimal.Decimal('1.51')") == 0
    assert (
        score(
            "class Fraction:\n    def __eq__(self, other): return True\ndef f(): return Fraction()", "assert f() == 1"
        )
        == 0
    )


def test_a_test_may_ask_for_the_class_of_an_object():
    source = "class A: pass\nclass B(A): pass\ndef f(): return B()\ndef g(): return 3\n"
    assert score(source, "assert isinstance(f(), A) and not isinstance(g(), A) and not isinstance(f(), int)") == 1
    assert (
        score(
            source, "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertIsInstance(f(), B)"
        )
        == 1
    )
    assert score(source, "assert isinstance(g(), A)") == score(source, "assert isinstance(A(), B)") == 0


def test_data_of_the_program_can_be_tested_without_a_call():
    assert score("LIMIT = 3", "assert LIMIT == 3") == 1
    assert score("LIMIT = 4", "assert LIMIT == 3") == 0


def answers_of(*sources):
    return [
        RewardInput(f"```python\n{source}\n```", {"tests": TEST}, id=f"row-{i}") for i, source in enumerate(sources)
    ]


def test_programs_that_loop_cost_their_own_time_and_no_run(caplog):
    """Four would take 20 s of a limit of 5 s: they earn nothing, the others what they deserve, and nothing stops."""
    loops = ["import time\nwhile True: time.sleep(1)"] * 4
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        judged = RewardManager({"code": Code(timeout=10, parallel=2)}, timeout=5)(answers_of(DOUBLE, *loops, DOUBLE))
    assert judged.scores["code"] == [1, *[0] * 4, 1] and judged.failures == {"code": 0}
    assert time.monotonic() - began < 5
    assert "4 of 6 programs" in caplog.text
    assert judged.metrics == {"code/out_of_time": pytest.approx(4 / 6), "code/checked_nothing": 0}


def test_a_row_that_is_wrong_costs_no_other_program_its_time():
    """It makes the judge ask for each answer alone; what loops still gets its share and no more."""
    answers = answers_of(*["import time\nwhile True: time.sleep(1)"] * 2, DOUBLE, DOUBLE)
    answers[0] = RewardInput("x", {"tests": "double(1) == 2"}, id="wrong")
    judged = RewardManager({"code": Code(timeout=10)}, timeout=5, on_error="mask")(answers)
    assert judged.scores["code"] == [None, 0, 1, 1] and judged.failures == {"code": 1}


def test_a_slow_program_gets_the_time_that_others_leave():
    """The first share is a second and more; only the second turn is long enough."""
    slow = f"import time\ntime.sleep(1.5)\n{DOUBLE}"
    quick = [DOUBLE] * 6
    assert Code(timeout=5, parallel=2).build()(answers_of(slow, *quick), deadline=time.monotonic() + 5) == [1] * 7


def test_without_time_nothing_is_run():
    began = time.monotonic()
    assert Code().build()(answers_of(DOUBLE, DOUBLE), deadline=began) == [0, 0]
    assert time.monotonic() - began < 1

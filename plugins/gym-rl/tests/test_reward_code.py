"""Programs in the sandbox: honest ones earn what they should; hostile ones earn nothing, harm nothing and do not stay."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from gym_core.errors import GymError
from gym_rl import Answer
from gym_rl.rewards import Code, sandbox
from gym_rl.rewards.code import Assertions, Dialogue, program
from gym_rl.rewards.code import tests as read

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs the module `resource`")

TEST = "assert double(21) == 42"
DOUBLE = "def double(x):\n    return 2 * x\n"


def permitted(level):
    try:
        return sandbox.run("import json, socket", sandbox.Limits(30), level)[0]
    except GymError:
        return False


LEVELS = [level for level in sandbox.LEVELS if permitted(level)]
CONFINED = [level for level in LEVELS if level.namespaces]
names = [f"{level.name}{'-as-user' if level.user_namespace else ''}" for level in LEVELS]
at_every_level = pytest.mark.parametrize("level", LEVELS, ids=names)
where_confined = pytest.mark.parametrize("level", CONFINED, ids=names[: len(CONFINED)])
SHORT = sandbox.Limits(seconds=0.6)
AMPLE = sandbox.Limits(seconds=20)


def score(source, test=TEST, **options):
    config = Code(timeout=options.pop("timeout", 10), **options)
    return config.build()([Answer(f"Here:\n```python\n{source}\n```\nDone.", {"tests": test})])[0]


def test_the_strongest_level_is_the_first_that_the_machine_permits():
    assert sandbox.strongest() == LEVELS[0]
    if not CONFINED:
        with pytest.raises(GymError, match="namespaces"):
            Code(isolation="namespaces").build()


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
    assert Code().build()([Answer("", {"tests": TEST})]) == [0]
    with pytest.raises(ValueError, match="tests"):
        Code().build()([Answer("x", {})])


def test_the_share_of_passed_tests_or_all_or_nothing():
    suite = ["assert double(1) == 2", "assert double(2) == 5", "assert double(3) == 6", "assert double(4) == 8"]
    assert score(DOUBLE, suite, partial=True) == 0.75
    assert score(DOUBLE, suite) == 0
    pairs = {"inputs": ["1", "2"], "outputs": ["1", "4"]}
    assert score("print(int(input()))", pairs, partial=True) == 0.5


def test_answers_keep_their_order_when_they_are_tested_at_once():
    texts = [DOUBLE, "def double(x): return 0", "while True: pass", DOUBLE, ""]
    answers = [Answer(f"```python\n{text}\n```", {"tests": TEST}) for text in texts]
    assert Code(timeout=1, parallel=3).build()(answers) == [1, 0, 0, 1, 0]


@at_every_level
def test_tests_call_functions_with_data_of_every_kind(level):
    source = """
import math
from dataclasses import dataclass
def same(x, *more, **options): return (x, *more, *options.values())
def sort(xs): xs.sort()
def rows(n):
    for i in range(n): yield {i: (i, 1.5, 2j, b"x", None, True, {1}, frozenset([2]))}
def fails(x): raise ValueError("no")
@dataclass
class Stack:
    items: list
    def push(self, x): self.items.append(x); return self
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
assert math.isclose(PI, 3.14159, rel_tol=1e-5)
"""
    assert sandbox.examine(source, test, AMPLE, level)
    assert not sandbox.examine(source, test + "\nassert same(1) == (2,)", AMPLE, level)


TAMPERING = {
    "equals everything": "class Yes:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef double(x): return Yes()",
    "an int that equals": "class Yes(int):\n    def __eq__(self, other): return True\ndef double(x): return Yes()",
    "exits well": "import os\nos._exit(0)",
    "exits well when called": "import os\ndef double(x): os._exit(0)",
    "leaves": "import sys\nsys.exit(0)",
    "prints results": 'print(\'passed\')\nprint(\'["returned", {"int": "0x2a"}, []]\')\ndef double(x): return 0',
    "writes to every descriptor": """
import os
for fd in range(64):
    try: os.write(fd, b'["double"]\\n["returned", {"int": "0x0"}, []]\\n' * 9)
    except OSError: pass
def double(x): return 0""",
    "patches builtins": """
import builtins, sys
builtins.compile = lambda *a, **k: compile('pass', '', 'exec')
builtins.AssertionError = None
builtins.exec = lambda *a: None
sys.excepthook = lambda *a: None
def double(x): return 0""",
    "patches the server": """
import sys
frame = sys._getframe()
while frame:
    for name, value in list(frame.f_globals.items()):
        if callable(value) and name.startswith('_') and not name.startswith('__'):
            frame.f_globals[name] = lambda *a, **k: None
    frame = frame.f_back
def double(x): return 0""",
    "brings its own names": "def all(xs): return True\nint = all\nclass math: isclose = all\ndef double(x): return 0",
    "patches json": "import json\njson.dumps = lambda *a, **k: '[\"returned\", true, []]'\ndef double(x): return 0",
    "answers with garbage": "import json\njson.dumps = lambda *a, **k: '[' * 100000\ndef double(x): return 0",
    "answers without end": """
import os, threading
def double(x):
    while True: os.write(1, b'x' * 65536) and os.write(3, b'x' * 65536) and os.write(4, b'x' * 65536)""",
}


@pytest.mark.parametrize("source", TAMPERING.values(), ids=TAMPERING)
def test_tampering_with_the_verdict_earns_nothing(source):
    test = "import math\nassert all([double(21) == 42])\nassert int(double(21)) == 42 and math.isclose(double(21), 42)"
    assert score(DOUBLE, test) == 1
    assert score(source, test, timeout=1) == 0
    assert score(f"{source}\nprint(41)", {"input": "21", "output": "42"}, timeout=1) == 0


@pytest.mark.parametrize(
    ("source", "test"),
    [
        ("def f(x): raise StopIteration", "assert all(map(lambda x: f(x) == x, [1, 2]))"),
        (
            "class All:\n    def __contains__(self, x): return True\n    __iter__ = ''.__iter__\ndef f(x): return All()",
            "assert 5 in f(1)",
        ),
        (
            "class More:\n    def __lt__(self, x): return True\n    __gt__ = __lt__\ndef f(x): return More()",
            "assert 1 < f(1) < 3",
        ),
    ],
    ids=["ends the loop of the test", "contains everything", "lies between"],
)
def test_objects_of_the_program_decide_nothing(source, test):
    assert score(source, test) == 0


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


RESOURCES = {
    "infinite loop": "while True: pass",
    "sleeps": "import time\ntime.sleep(1000)",
    "ignores SIGTERM and SIGALRM": "import signal, time\n[signal.signal(s, 1) for s in (15, 14, 2, 1)]\ntime.sleep(1000)",
    "memory bomb": "x = []\nwhile True: x.append(bytearray(10**7))",
    "integer bomb": "print(9**9**9)",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "huge output": "while True: print('x' * 10**6)",
    "many threads": "import threading, time\nfor _ in range(10**5): threading.Thread(target=time.sleep, args=(99,)).start()",
    "many files": "fs = [open(f'f{i}', 'w') for i in range(10**4)]",
    "large file": "f = open('f', 'wb')\nwhile True: f.write(bytes(10**6)); f.flush()",
}


FEW = ("ignores SIGTERM and SIGALRM", "memory bomb", "huge output")
GREEDY = [(level, name) for level in LEVELS for name in (RESOURCES if level is LEVELS[0] else FEW)]


@pytest.mark.parametrize(("level", "name"), GREEDY, ids=[f"{names[LEVELS.index(one)]}-{name}" for one, name in GREEDY])
def test_a_program_that_takes_too_much_is_ended(level, name):
    began = time.monotonic()
    passed, printed = sandbox.run(RESOURCES[name], SHORT, level)
    assert not passed and time.monotonic() - began < SHORT.seconds + 4
    assert len(printed) <= SHORT.output * 2**20


def test_the_limit_of_memory_is_that_of_the_recipe():
    level = sandbox.strongest()
    assert sandbox.run("x = bytearray(300 * 2**20)", sandbox.Limits(20, memory=512), level)[0]
    assert not sandbox.run("x = bytearray(300 * 2**20)", sandbox.Limits(20, memory=256), level)[0]


FORKS = """
import os, signal, time
for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)
while True:
    try: os.fork()
    except OSError: time.sleep(0.01)
"""
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1)
        time.sleep(313)
        os._exit(0)
    os._exit(0)
os.wait()
"""


def processes():
    return {pid for pid in os.listdir("/proc") if pid.isdigit()}


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("source", [FORKS, DAEMON], ids=["fork bomb", "daemon"])
@where_confined
def test_no_process_is_left_behind(level, source):
    before, most, over = processes(), [0], threading.Event()

    def watch():
        while not over.wait(0.05):
            most[0] = max(most[0], len(processes() - before))

    watcher = threading.Thread(target=watch)
    watcher.start()
    limits = SHORT
    # Root of the machine is above the limit of processes; a user of a namespace is not.
    bounded = level.own_user or os.geteuid() != 0
    if bounded or source is DAEMON:
        sandbox.run(source, limits, level)
    over.set()
    watcher.join()
    assert most[0] <= limits.processes + 6
    left = [pid for pid in processes() - before if b"guard.py" in command(pid)]
    assert not left


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@at_every_level
def test_files_of_the_machine_are_out_of_reach(level, tmp_path):
    secret, target = tmp_path / "secret", tmp_path / "target"
    secret.write_text("sesame")
    target.write_text("whole")
    reading = f"print(open({str(secret)!r}).read())"
    assert "sesame" not in sandbox.run(reading, SHORT, level)[1]
    for writing in (
        f"open({str(target)!r}, 'w').write('broken')",
        f"import os\nos.remove({str(target)!r})",
        f"import os\nos.rename({str(target)!r}, {str(target)!r} + '-moved')",
        f"import shutil\nshutil.rmtree({str(tmp_path)!r})",
        "import os\nopen(os.__file__, 'a').write('')",
        f"import os\nos.chmod({str(tmp_path)!r}, 0)",
    ):
        assert not sandbox.run(writing, SHORT, level)[0], writing
    assert target.read_text() == "whole" and sorted(tmp_path.iterdir()) == [secret, target]
    assert sandbox.run("open('mine', 'w').write('1')\nprint(open('mine').read())", AMPLE, level) == (True, "1\n")


@at_every_level
def test_the_network_is_out_of_reach(level):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        assert not sandbox.run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)", SHORT, level)[0]
        with pytest.raises(TimeoutError):
            server.accept()


@at_every_level
def test_the_trainer_cannot_be_killed(level):
    source = f"""
import os, signal
for pid in (os.getppid(), {os.getpid()}, -1):
    for kill in (os.kill, os.killpg):
        try: kill(pid, signal.SIGKILL)
        except OSError: pass
"""
    sandbox.run(source, SHORT, level)
    assert sandbox.run("print(1)", AMPLE, level) == (True, "1\n")


@where_confined
def test_nothing_can_be_gained_by_native_code(level):
    """What the kernel refuses stays refused where no interpreter watches."""
    source = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) != 0
assert libc.setuid(0) != 0 or os.getuid() == {os.geteuid()}
assert libc.open(b"/etc/passwd", 0) < 0
assert libc.open(b"/proc/self/root/etc/passwd", 0) < 0
assert libc.chroot(b"/tmp") != 0
assert libc.kill({os.getpid()}, 9) != 0
assert libc.ptrace(16, {os.getpid()}, 0, 0) != 0
print("held")
"""
    assert sandbox.run(source, AMPLE, level) == (True, "held\n")


@at_every_level
def test_the_environment_is_empty(level, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "sesame")
    passed, printed = sandbox.run("import os\nprint(dict(os.environ), os.getenv('SECRET_TOKEN'))", AMPLE, level)
    assert passed and printed == "{} None\n"


def test_nothing_stays_in_the_directory_of_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for level in LEVELS:
        sandbox.run("open('x', 'w').write('1')", SHORT, level)
    assert not list(tmp_path.iterdir())


def test_a_program_cannot_pretend_that_there_is_no_sandbox():
    assert score("import os\nos._exit(125)") == 0
    assert sandbox.run("import os\nos._exit(125)", SHORT, sandbox.strongest()) == (False, "")

"""Hostile programs in the sandbox: what each of them tries, and what comes of it, at every level that this machine permits.

`pytest -rA -k attempt` prints the table.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import platform
import re
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import hostile_programs as attempts
import pytest

from gym_core.errors import GymError
from gym_rewards import sandbox
from gym_rewards.sandbox import Limits, Verdict, seccomp, syscalls
from gym_rewards.sandbox.inside import supervisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are confined by the kernel of Linux alone")

AMPLE, SHORT = Limits(seconds=30), Limits(seconds=0.5)
SHARED = {**attempts.FILES, **attempts.CALLS}


def permitted(level):
    try:
        return sandbox.run("import json, socket", AMPLE, level)[0] is Verdict.PASSED
    except GymError:
        return False


LEVELS = [level for level in sandbox.LEVELS if permitted(level)]
NAMES = [f"{level.name}{'-user' if level.user_namespace else '-own' if level.own_user else ''}" for level in LEVELS]
at_every_level = pytest.mark.parametrize("level", LEVELS, ids=NAMES, scope="module")


def test_this_machine_confines_programs():
    """Everything below asks the levels that there are: without one, nothing would be tested."""
    assert LEVELS and sandbox.level("namespaces") == LEVELS[0]


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """What hostile programs are after: files, a process, sockets and a token."""
    folder = tmp_path_factory.mktemp("outside")
    for name in ("secret", "target", "checker"):
        (folder / name).write_text(name)
    environment = pytest.MonkeyPatch()
    environment.setenv("SECRET_TOKEN", "sesame")
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as neighbour,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mailbox,
    ):
        server.settimeout(0.05)
        mailbox.settimeout(0.05)
        mailbox.bind(str(folder / "mailbox"))
        yield {
            "folder": folder,
            "server": server,
            "mailbox": mailbox,
            "neighbour": neighbour,
            "before": state(folder),
            "world": {
                **{name: str(folder / name) for name in ("secret", "target", "checker")},
                "inside": supervisor.__file__,
                "unix": str(folder / "mailbox"),
                "bytecode": importlib.util.cache_from_source(os.__file__),
                "neighbour": neighbour.pid,
                "trainer": os.getpid(),
                "port": server.getsockname()[1],
                "attempts": SHARED,
            },
        }
        neighbour.kill()
    environment.undo()


def state(folder):
    def look(path):
        told = path.lstat()
        return path.name, told.st_mode, told.st_mtime_ns, path.is_file() and path.read_text()

    return sorted(map(look, folder.iterdir()))


@pytest.fixture(scope="module")
def tried(level, outside):
    """What came of all attempts that one program can make one after the other."""
    source = attempts.PRELUDE + attempts.TRY_ALL
    verdict, printed = sandbox.run(source, AMPLE, level, json.dumps(outside["world"]) + "\n")
    assert verdict is Verdict.PASSED
    return json.loads(printed)


@pytest.fixture(scope="module")
def ended(level):
    """What came of the programs that have to be ended, some at once: they mostly wait."""
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda source: sandbox.run(source, SHORT, level), attempts.ENDS.values())
        return dict(zip(attempts.ENDS, found, strict=True))


@pytest.mark.parametrize("name", SHARED)
@at_every_level
def test_an_attempt_is_refused(level, tried, name):
    print(f"{level.name}: {name} -> {tried[name]}")
    assert tried[name].startswith("refused")
    assert name not in attempts.CALLS or "ENOSYS" in tried[name]


@pytest.mark.parametrize("name", attempts.ENDS)
@at_every_level
def test_an_attempt_is_ended(level, ended, name):
    verdict, printed = ended[name]
    print(f"{level.name}: {name} -> {verdict.name.lower()}, {len(printed)} characters printed")
    assert verdict in (Verdict.FAILED, Verdict.LATE) and "MADE IT" not in printed
    assert len(printed) <= SHORT.output * 2**20


@at_every_level
def test_nothing_outside_has_changed(level, tried, ended, outside):
    assert state(outside["folder"]) == outside["before"]
    assert outside["neighbour"].poll() is None
    for reach in (outside["server"].accept, lambda: outside["mailbox"].recv(1)):
        with pytest.raises(TimeoutError):
            reach()


def test_without_the_filter_calls_go_through(outside, monkeypatch):
    """The attempts are real: it is the filter that refuses them, not a mistake in them."""
    everything = b"\x06\x00\x00\x00\x00\x00\xff\x7f"  # return SECCOMP_RET_ALLOW
    monkeypatch.setattr(seccomp, "program", lambda threads: everything)
    some = {name: attempts.CALLS[name] for name in attempts.WITHOUT_FILTER}
    world = json.dumps({**outside["world"], "attempts": some})
    _, printed = sandbox.run(attempts.PRELUDE + attempts.TRY_ALL, AMPLE, LEVELS[0], world + "\n")
    assert not {name: result for name, result in json.loads(printed).items() if "WENT THROUGH" not in result}


@at_every_level
def test_every_other_call_of_the_kernel_does_not_exist(level):
    """All numbers, also those that nobody has thought of: what the table does not name is refused as unknown."""
    source = """
import ctypes, errno, json, sys
libc = ctypes.CDLL(None, use_errno=True)
known, found = json.loads(sys.stdin.read()), []
for number in range(1024):
    if number not in known and (libc.syscall(number, 0, 0, 0, 0, 0, 0), ctypes.get_errno()) != (-1, errno.ENOSYS):
        found.append(number)
print(found)
"""
    place = syscalls.ARCHITECTURES.index(platform.machine())
    known = [both[place] for both in syscalls.NUMBERS.values()]
    known += [335, 336]  # of x86_64's uprobes: never filtered, and end whoever makes them
    assert sandbox.run(source, AMPLE, level, json.dumps(known)) == (Verdict.PASSED, "[]\n")


HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", syscalls.ARCHITECTURES)
def test_the_numbers_of_calls_are_those_of_the_kernel(machine):
    header = Path("/usr/include") / HEADERS[machine]
    if not header.exists():
        pytest.skip("the headers of Linux are not here")
    text = re.sub(r"__NR3264_fstatat\b", "__NR3264_newfstatat", header.read_text())
    true = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    place = syscalls.ARCHITECTURES.index(machine)
    assert {name: both[place] for name, both in syscalls.NUMBERS.items()} == {
        name: true.get(name) for name in syscalls.NUMBERS
    }


def decide(program, number, architecture, arguments=()):
    """Return what the kernel makes of a call under a filter: classic BPF by its manual, for the instructions we use."""
    words = [number, architecture, 0, 0, *(part for value in arguments for part in (value & 0xFFFFFFFF, value >> 32))]
    words += [0] * (16 - len(words))
    at, accumulator = 0, 0
    while True:
        code, true, false, k = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            accumulator = words[k // 4]
        elif code == 0x54:
            accumulator &= k
        elif code in (0x15, 0x35):
            at += true if (accumulator == k if code == 0x15 else accumulator >= k) else false
        else:
            assert code == 0x06
            return k


ALLOWED, KILLED, ABSENT = 0x7FFF0000, 0x80000000, 0x00050000 | errno.ENOSYS
THREAD = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000 | 0x80000 | 0x100000 | 0x200000
#: Arguments that are allowed, and those next to them that are not.
EDGES = {
    "clone": ([(THREAD,), (THREAD | 0x400000,)], [(17,), (THREAD & ~0x10000,), (THREAD | 0x10000000,), (0x4000 | 17,)]),
    "fcntl": ([(9, 1), (9, 4), (9, 1030)], [(9, 5), (9, 6), (9, 8), (9, 1031), (9, 1024)]),
    "ioctl": ([(0, 0x5401), (0, 0x5421)], [(0, 0x5412), (0, 0x5402), (0, 0xC0045877)]),
    "mmap": ([(0, 1, 3, 0x22), (0, 1, 1, 0x802)], [(0, 1, 3, 0x21), (0, 1, 3, 1), (0, 1, 3, 3), (0, 1, 3, 0x28)]),
    "prctl": ([(15,), (16,)], [(1,), (4,), (22,), (23,), (47,)]),
    "prlimit64": ([(0,)], [(1,), (2**31,)]),
    "socketpair": ([(1, 1), (1, 0x80801)], [(1, 2), (1, 5), (2, 1), (1, 0x80802), (30, 1)]),
}


@pytest.mark.parametrize("machine", syscalls.ARCHITECTURES)
def test_the_filter_allows_the_table_and_nothing_else(machine):
    """On both architectures, whichever this is, by an interpreter of the kernel's language."""
    architecture = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    program, single = seccomp.program(machine=machine), seccomp.program(threads=False, machine=machine)
    numbers = {name: both[syscalls.ARCHITECTURES.index(machine)] for name, both in syscalls.NUMBERS.items()}
    free = {number for name, number in numbers.items() if name not in EDGES}
    for number in {*range(1024)} - {numbers[name] for name in EDGES}:
        assert decide(program, number, architecture) == (ALLOWED if number in free else ABSENT), number
        assert decide(program, number, architecture, [2**64 - 1] * 6) == (ALLOWED if number in free else ABSENT)
        assert decide(program, 0x40000000 | number, architecture) == decide(program, number, 0x40000003) == KILLED
    for name, (allowed, refused) in EDGES.items():
        assert all(decide(program, numbers[name], architecture, given) == ALLOWED for given in allowed), name
        assert all(decide(program, numbers[name], architecture, given) == ABSENT for given in refused), name
    assert {decide(single, numbers["clone"], architecture, given) for given in EDGES["clone"][0]} == {ABSENT}
    assert len(program) // 8 <= 4096  # the most that the kernel takes


def test_an_unknown_architecture_is_refused_by_name(monkeypatch):
    with pytest.raises(GymError, match="riscv64"):
        seccomp.program(machine="riscv64")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(GymError, match="run on one of x86_64, aarch64"):
        sandbox.level.__wrapped__("namespaces")


def test_a_machine_that_allows_no_more_namespaces_is_not_said_to_have_a_full_disk():
    source = f"""
import sys; sys.path.insert(0, {str(Path(supervisor.__file__).parent.parent)!r})
from inside import confinement
confinement._libc.unshare(0x10000000)
try:
    open("/proc/sys/user/max_user_namespaces", "w").write("0")
except OSError:
    sys.exit("no namespaces to try it in")
confinement.enter_namespaces(True)
"""
    said = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False).stderr
    if "no namespaces to try it in" in said:
        pytest.skip(said)
    assert "user.max_user_namespaces" in said and "disk" not in said and "device" not in said


HOLD = """
import os, threading
held, blocks = 0, []
try:
    while True: blocks.append(b"x" * 2**20); held += 2**20
except MemoryError: del blocks[-2:]
try:
    for i in range(10**4):
        with open(f"f{i}", "wb", 0) as file: held += file.write(bytes(2**19))
except OSError: pass
try:
    while True:
        pipe = os.pipe()
        os.set_blocking(pipe[1], False)
        held += os.write(pipe[1], bytes(2**20))
except OSError: pass
print(held // 2**20)
"""


@at_every_level
def test_what_a_program_holds_in_memory_is_bounded_in_all(level):
    limits = Limits(seconds=20, memory=96, disk=8)
    verdict, printed = sandbox.run(HOLD, limits, level)
    print(f"{level.name}: {printed.strip()} MiB held under a limit of {limits.memory} + {limits.disk}")
    assert verdict is Verdict.PASSED and 40 < int(printed) <= limits.memory + limits.disk + 4


@at_every_level
def test_the_limit_of_memory_is_what_was_asked_for(level):
    source = "x = b'x' * (200 * 2**20)"
    assert sandbox.run(source, Limits(20, memory=256), level)[0] is Verdict.PASSED
    assert sandbox.run(source, Limits(20, memory=192), level)[0] is Verdict.FAILED


@at_every_level
def test_honest_programs_do_what_programs_do(level):
    source = """
import asyncio, decimal, gc, hashlib, io, random, re, select, signal, sqlite3, sys, tempfile, time, zlib
async def answer():
    await asyncio.sleep(0.001)
    return 42
assert asyncio.run(answer()) == 42
assert sqlite3.connect(":memory:").execute("select 6 * 7").fetchone() == (42,)
signal.signal(signal.SIGALRM, lambda *a: None)
signal.setitimer(signal.ITIMER_REAL, 0.001); time.sleep(0.005)
sys.setrecursionlimit(10**5)
def depth(n): return n and 1 + depth(n - 1)
assert depth(5000) == 5000
print(hashlib.sha256(zlib.compress(b"x" * 10**6)).hexdigest()[:4], random.Random(1).random() < 1, input())
"""
    verdict, printed = sandbox.run(source, AMPLE, level, "line\n")
    assert verdict is Verdict.PASSED and printed.endswith(" True line\n")


def test_honest_programs_write_files_and_start_threads_where_they_can():
    source = """
import os, shutil, tempfile, threading
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/a", "w") as file: file.write("text")
    shutil.copyfile(f"{folder}/a", f"{folder}/b")
    os.replace(f"{folder}/b", f"{folder}/c")
    found = sorted(os.listdir(folder)), open(f"{folder}/c").read()
thread = threading.Thread(target=print, args=found); thread.start(); thread.join()
open("left", "w").write("1"); print(os.listdir("."))
"""
    level = sandbox.level("namespaces")
    expected = "['a', 'c'] text\n['left']\n" if level.threads else ""
    for _ in range(2):  # the second finds nothing of the first
        assert sandbox.run(source, AMPLE, level)[1] == expected


@at_every_level
def test_nothing_is_left_behind(level, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sandbox.run("open('x', 'w').write('1')", SHORT, level)
    sandbox.run("while True: pass", SHORT, level)
    sandbox.examine("while True: pass", "f()", SHORT, level)
    assert not list(tmp_path.iterdir())
    for _ in range(50):
        left = [pid for pid in os.listdir("/proc") if pid.isdigit() and str(tmp_path).encode() in command(pid)]
        if not left:
            return
        time.sleep(0.02)
    assert not left


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


ANY = """
import math, unittest
class Cases(unittest.TestCase): pass
case = Cases()
def holds(judge):
    try: return judge()
    except Exception: return False
judges = [
    lambda: double(21) == 42, lambda: not double(21) != 42, lambda: 41 < double(21) < 43, lambda: 42 in [double(21)],
    lambda: 42 in double(21), lambda: math.isclose(double(21), 42), lambda: int(double(21)) == 42,
    lambda: all(double(x) == 2 * x for x in (1, 2)), lambda: all(map(lambda x: double(x) == 2 * x, (1, 2))),
    lambda: isinstance(double(21), int) and double(21) > 40, lambda: double([21]) == [42], lambda: {double(21): 1}[42],
    lambda: abs(double(21) - 42) < 1e-6, lambda: (double(21) - 42) ** 2 < 1e-6, lambda: not double(21) - 42,
    lambda: len(double(21) ^ {42}) == 0, lambda: list(double(21) - {42}) == [], lambda: double(21) / 42 == 1,
    lambda: abs(-(double(21) - 42)) < 1e-6, lambda: int(abs(double(21) - 42)) == 0,
    lambda: case.assertAlmostEqual(double(21), 42) is None, lambda: case.assertSetEqual(double({21}), {42}) is None,
    lambda: case.assertAlmostEqual(double(21), 42, delta=0.1) is None, lambda: case.assertCountEqual(double([21]), [42]),
    lambda: case.assertEqual(double(21), 42) is None, lambda: case.assertIn(double(21), [42]) is None,
]
assert any([holds(judge) for judge in judges])
"""
CASES = """
import unittest
class Cases(unittest.TestCase):
    def test_double(self):
        for x in (1, 2):
            with self.subTest(x):
                self.assertEqual(double(x), 2 * x)
if __name__ == "__main__":
    unittest.main()
"""
CHECKS = {
    "one of many comparisons": partial(sandbox.examine, check=ANY),
    "cases": partial(sandbox.examine, check=CASES),
    "call": partial(sandbox.call, name="double", arguments=[21], expected=[42]),
}


@pytest.fixture(scope="module")
def forged():
    """What every check says of every forgery; the first passes if any one of its comparisons does."""
    given = {"limits": replace(SHORT, seconds=1), "level": sandbox.level("namespaces")}
    pairs = [(name, form) for name in attempts.FORGERIES for form in CHECKS]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda pair: CHECKS[pair[1]](attempts.FORGERIES[pair[0]], **given), pairs)
        return dict(zip(pairs, found, strict=True))


@pytest.mark.parametrize("name", attempts.FORGERIES)
def test_an_attempt_to_forge_the_verdict_earns_nothing(name, forged):
    found = {form: forged[name, form] for form in CHECKS}
    print(f"{name} -> {', '.join(f'{form}: {verdict.name.lower()}' for form, verdict in found.items())}")
    assert set(found.values()) <= {Verdict.FAILED, Verdict.LATE}


@at_every_level
def test_the_right_program_passes_every_check(level):
    source = "def double(x):\n    return 2 * x"
    for check in CHECKS.values():
        assert check(source, limits=AMPLE, level=level) is Verdict.PASSED

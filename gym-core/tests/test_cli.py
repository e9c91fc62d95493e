"""The command line: instant and import-free where it lists, exact in its exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = "model: {backend: words, path: w}\n"
PAPER = "https://arxiv.org/abs/1706.03762"
HEAVY = {"torch", "numpy", "pydantic", "transformers", "pluggy", "stevedore"}


def gym(site: Path, *arguments: str, code: str | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "gym_core.cli"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path]), "NO_COLOR": "1"}
    return subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, timeout=60)


@pytest.fixture
def recipe(tmp_path):
    def write(text: str = MODEL + "algorithm: toy\n", name: str = "r.yaml") -> str:
        (tmp_path / name).write_text(text + f"output: {tmp_path / 'out'}\n")
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize("arguments", [["--help"], ["--plugins", "list"], ["plugins", "list", "--json"], ["--version"]])
def test_listing_imports_nothing_heavy(site, arguments):
    code = (
        "import sys; from gym_core.cli import run\n"
        "status = run(sys.argv[1:])\n"
        f"loaded = {sorted(HEAVY)!r}\n"
        "print('LOADED', [name for name in loaded if name in sys.modules], 'toy' in sys.modules, file=sys.stderr)\n"
        "sys.exit(status)"
    )
    done = gym(site, *arguments, code=code)
    assert done.returncode == 0, done.stderr
    assert "LOADED [] False" in done.stderr


def test_what_a_command_imports_is_not_looked_through_for_garbage(site):
    """Once more is made than imports make, the collector works as usual."""
    code = (
        "import gc, sys, gym_core.cli as c\n"
        "usual, others = gc.get_threshold(), list(gc.callbacks)\n"
        "def told(_):\n"
        "    before = gc.get_threshold()[0]\n"
        "    gc.collect()\n"
        "    print(before, gc.get_threshold() == usual, gc.callbacks == others, file=sys.stderr)\n"
        "    return 0\n"
        "c.run = told; c.main()"
    )
    assert gym(site, code=code).stderr == "1000000 True True\n"


@pytest.mark.parametrize("status", [0, 4])
def test_a_command_ends_without_taking_apart_what_it_imported(site, status):
    """Libraries that look at the end for what is left of theirs print pages of it. What plugins do at the end is done."""
    code = (
        "import atexit, ctypes, gym_core.cli as c\n"
        "ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p))\n"
        f"c.run = lambda a: (atexit.register(print, 'kept'), print('said', end=' '), {status})[-1]\n"
        "c.main()"
    )
    done = gym(site, code=code)
    assert (done.returncode, done.stdout, done.stderr) == (status, "said kept\n", "")


def test_what_cannot_be_written_is_no_success(site):
    with open("/dev/full", "w") as full:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path]), "NO_COLOR": "1"}
        command = [sys.executable, "-m", "gym_core.cli", "--version"]
        assert subprocess.run(command, stdout=full, stderr=subprocess.DEVNULL, env=environment, timeout=60).returncode


def test_a_program_that_cannot_be_told_is_told_beside_it(site, recipe):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    command = [sys.executable, "-m", "gym_core.cli", "validate", recipe(), "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    assert done.returncode == 1 and "No space left" in done.stderr and "Traceback" not in done.stderr


def test_characters_that_the_output_cannot_have_end_no_command(site, recipe, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path]), "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "gym_core.cli", "train", recipe(), f"output={tmp_path}/\N{WATER BUFFALO}"]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"wrote {tmp_path}/\\U0001f403/model\n".encode())


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_command_without_output_does_its_work(site, recipe, closed):
    """As daemons are started, with nothing to write to."""
    command = f"{sys.executable} -m gym_core.cli validate {recipe()} {closed}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


#: As rich does it.
OTHER = """
import os, gym_core.cli as c
def say(*a, **k):
    try:
        os.write(1, b"x")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(1)
c.cli.main = say
c.main()
"""


@pytest.mark.parametrize("program", [["-m", "gym_core.cli", "plugins", "list"], ["-c", OTHER]])
def test_a_reader_who_has_seen_enough_is_no_error(site, program):
    """`gym plugins list | head -1`: the pipe is closed before all of it is written, as click or rich sees it."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path]), "NO_COLOR": "1"}
    command = [sys.executable, *program]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


#: A hook that tells people something, in each of the ways there are.
TELLING = """
import click, os, sys, warnings
from gym_core.hooks import hookimpl
class Telling:
    @hookimpl(tryfirst=True)
    def load_model(self, run):
        for _ in range(3):
            print("said", "x" * 10_000)
            print("said", file=sys.stderr, flush=True)
            click.echo("said", err=True)
            warnings.warn("said")
            sys.stderr.flush()
"""


@pytest.mark.parametrize("where", ["pipe", "/dev/full"])
def test_messages_that_cannot_be_written_end_no_run(site, recipe, install, tmp_path, where):
    """`gym train r.yaml 2>&1 | head -1`, and a log on a full disk: what was trained is there all the same."""
    if where == "pipe":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open(where, os.O_WRONLY)
    made = install("gym-telling", {"gym_telling": TELLING}, {"gym.hooks": {"telling": "gym_telling:Telling"}})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(made), str(site), *sys.path]), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "gym_core.cli", "train", recipe(MODEL + "algorithm: toy\nhooks: [telling]\n")]
    heard = writing if where == "pipe" else subprocess.DEVNULL
    done = subprocess.run(command, stdout=heard, stderr=writing, env=environment, timeout=60)
    os.close(writing)
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "finished"
    assert done.returncode == 0


@pytest.mark.parametrize(("said", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_is_written_to_in_colour_unless_it_says_otherwise(site, said, coloured):
    terminal, end = os.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path]), "TERM": "xterm", "NO_COLOR": ""}
    command = [sys.executable, "-m", "gym_core.cli", "plugins", "list", "--kind", "quantizers"]
    subprocess.run(command, stdin=end, stdout=end, stderr=end, env={**environment, **said}, timeout=60, check=True)
    os.close(end)
    assert (b"\x1b[1m" in os.read(terminal, 1000)) is coloured
    os.close(terminal)


def test_plugins_list_names_owner_and_version(site):
    listed = json.loads(gym(site, "plugins", "list", "--json").stdout)["plugins"]
    assert {
        "kind": "algorithms",
        "name": "toy",
        "value": "toy:Toy",
        "dist": "gym-toy",
        "version": "1.0",
        "paper": PAPER,
    } in listed
    text = gym(site, "--plugins", "list").stdout
    assert text == gym(site, "plugins", "list").stdout and re.search(rf"gym-toy 1\.0 +{PAPER}\n", text)
    assert "exporters" not in gym(site, "--plugins", "list", "--kind", "algorithms").stdout


def test_plugins_list_has_dialects_too(install, capsys):
    from gym_core.cli import run

    install("gym-one", {}, {"gym.dialects": {"spoken": "one:translate"}})
    assert run(["plugins", "list"]) == 0 and "dialects\n  spoken" in capsys.readouterr().out
    assert run(["plugins", "list", "--kind", "dialects"]) == 0 and "spoken" in capsys.readouterr().out


def test_train_and_validate(site, recipe, tmp_path):
    path = recipe()
    assert gym(site, "validate", path).returncode == 0
    done = gym(site, "train", path, "--json")
    assert json.loads(done.stdout)["artifact"]["path"] == str(tmp_path / "out" / "model")
    assert "words of a package" in done.stderr  # and not in the way of who reads the answer
    assert "finished already" in gym(site, "train", path).stdout


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (["validate"], MODEL + "algorithm: toy\nadaptor: x\n", 2),
        (["validate"], MODEL + "algorithm: nothing\n", 3),
        (["train"], MODEL + "algorithm: toy\ntrain: {epochs: 0}\n", 2),
        (["validate"], "model: [w\n", 2),
        (["validate"], MODEL + "model: v\nalgorithm: toy\n", 2),
        (["validate"], "model: !!python/object/apply:os.system [id]\nalgorithm: toy\n", 2),
    ],
)
def test_exit_codes_and_four_lines(site, recipe, arguments, text, code):
    done = gym(site, *arguments, recipe(text))
    assert done.returncode == code
    assert 1 <= len(done.stderr.strip().splitlines()) <= 4 and "Traceback" not in done.stderr
    as_json = gym(site, *arguments, recipe(text), "--json")
    assert as_json.returncode == code and json.loads(as_json.stdout)["problems"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["train", "--json"], "Missing argument"), (["train", "r.yaml", "--json", "--nope"], "--nope")],
)
def test_a_program_is_told_in_json_what_is_wrong_with_its_command_line(capsys, arguments, why):
    from gym_core.cli import run

    assert run(arguments) == 2
    told = capsys.readouterr()
    (problem,) = json.loads(told.out)["problems"]
    assert why in problem["why"] and problem["where"] == "command line" and not told.err


def test_an_output_that_is_a_file_is_said_to_be_one(site, recipe, tmp_path):
    (tmp_path / "taken").write_text("precious")
    done = gym(site, "train", recipe(), f"output={tmp_path / 'taken'}")
    assert done.returncode == 2 and "output: is a file" in done.stderr


def test_usage_errors(site, tmp_path):
    assert gym(site, "validate", str(tmp_path / "absent.yaml")).returncode == 2
    assert gym(site, "nonsense").returncode == 2
    assert gym(site, "train").returncode == 2


def test_a_crash_is_told_in_four_lines_and_recorded(site, recipe, tmp_path):
    (site / "crash.py").write_text("class Trainer:\n    def __init__(self, *a, **k): raise KeyError('lost')\n")
    code = (
        "import toy, sys; toy.Toy.target = 'crash:Trainer'; from gym_core.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    done = gym(site, "train", recipe(), code=code)
    assert done.returncode == 1 and "KeyError: 'lost'" in done.stderr and len(done.stderr.strip().splitlines()) <= 4
    assert "Traceback" in json.loads((tmp_path / "out" / "run.json").read_text())["error"]["traceback"]
    assert "run.json holds it too" in done.stderr


def test_a_crash_outside_of_a_run_speaks_of_no_record(site, recipe):
    code = (
        "import toy, sys; toy.Toy.check = lambda self: 1 / 0; from gym_core.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    done = gym(site, "validate", recipe(), code=code)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr and "run.json" not in done.stderr


@pytest.mark.parametrize(
    "code", ["import os; os._exit(0)", "raise SystemExit(0)", "import os; os.execv('/bin/true', ['true'])"]
)
def test_a_command_that_is_cut_short_never_says_it_is_done(tmp_path, code):
    (tmp_path / "early.py").write_text(f"def run(*a, **k):\n    {code.replace('; ', chr(10) + '    ')}\n")
    start = "import early, gym_core.discovery as d; d.installed = early.run; from gym_core.cli import main; main()"
    done = gym(tmp_path, "plugins", "list", code=start)
    assert done.returncode == 1 and done.stderr.startswith("error: "), (done.returncode, done.stderr)


def test_children_of_a_command_may_end_as_they_like(tmp_path):
    code = (
        "import os, gym_core.cli as c; c.run = lambda a: os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) "
        "if (p := os.fork()) else os._exit(0)\nc.main()"
    )
    assert gym(tmp_path, code=code).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plugins", "list", "--kind", "planners"), "pip install gym-plan"),
        (("drill",), "pip install gym-drill"),
        (("plugins", "trace"), "pip install gym-manage"),
        (("trainn",), "did you mean `gym train`?"),
        (("val",), "did you mean `gym validate`?"),
        (("va",), "`gym --help` lists them"),
    ],
)
def test_what_is_not_installed_is_said_with_the_package_that_brings_it(install, arguments, said, capsys):
    from gym_core.cli import run

    install("gym-one", {}, {"gym.algorithms": {"one": "one:One"}})
    assert run(list(arguments)) in (2, 3)
    assert said in capsys.readouterr().err


def test_an_empty_list_says_what_to_install(install, capsys):
    from gym_core.cli import run

    install("gym-manage", {}, {"gym.facade": {"Trainer": "gym_manage.python:Trainer"}})
    assert run(["--plugins", "list"]) == 0
    assert "pip install gym-sft gym-torch" in capsys.readouterr().out


VOICE = '''
raise SystemExit("imported")

def speak(loudly):
    """Say something.

    More.
    """

def mute():
    return ""
'''


def test_help_says_what_a_command_of_a_plugin_does_and_does_not_import_it(install, capsys):
    from gym_core.cli import run

    install("gym-voice", {"voice": VOICE}, {"gym.commands": {"speak": "voice:speak", "mute": "voice:mute"}})
    assert run(["--help"]) == 0
    said = capsys.readouterr().out
    assert "Say something. [gym-voice]" in said and "About gym-voice [gym-voice]" in said


SHOUT = '''
import click

@click.command()
def shout():
    """Say something loudly."""
    return {}["voice"]
'''

STRANGE = '''
from gym_core import Algorithm
from pydantic import field_validator

class Strange(Algorithm):
    """Has a check that raises what it should not."""

    power: int = 1
    """How much."""

    @field_validator("power")
    @classmethod
    def known(cls, power):
        return {1: 1}[power]
'''


@pytest.mark.parametrize("command", [["shout"], ["validate", "r.yaml"]], ids=["its command", "its check of an option"])
def test_an_unexpected_error_outside_a_run_names_the_package_too(install, tmp_path, monkeypatch, capsys, command):
    from gym_core.cli import run

    points = {"gym.commands": {"shout": "loud_command:shout"}, "gym.algorithms": {"strange": "loud_strange:Strange"}}
    install("gym-loud", {"loud_command": SHOUT, "loud_strange": STRANGE}, points, version="2.1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text("algorithm: {name: strange, power: 2}\n")
    assert run(command) == 1
    assert capsys.readouterr().err.startswith("error: raised in gym-loud 2.1\n  KeyError: ")

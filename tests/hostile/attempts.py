"""Attempts on the kernel, one a row: what a distribution does, what it is found to be, and what a recipe that names it comes to.

Each distribution brings an algorithm of its own name. `found` stands in `gym plugins check`, or is empty where nothing is wrong
with it; `named` stands in what `gym train` says of a recipe that names it, is empty where the run just works, and None where there
is nothing to name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Change = Callable[[Path], object]


@dataclass(frozen=True)
class Attempt:
    """One hostile or broken distribution."""

    does: str
    found: str = ""
    named: str | None = None
    code: str | None = None
    options: dict[str, Any] = field(default_factory=dict)  #: of `Site.add`
    change: Change | None = None  #: done to its metadata folder


#: A healthy algorithm; what comes before it is the attempt.
HEALTHY = '''
from typing import Any, ClassVar
from gym_core import Algorithm, Artifact


class Toy(Algorithm):
    """Writes one file."""

    target: ClassVar[str] = "{module}:Trainer"
    steps: int = 3
    """How many."""


class Trainer:
    def __init__(self, config, run, model):
        self.run = run

    def train(self):
        made = self.run.output / "model"
        made.mkdir(exist_ok=True)
        (made / "weights.txt").write_text("1")
        return Artifact(made)
'''
HEAD = "Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"


def importing(does: str, code: str, found: str = "", named: str = "") -> Attempt:
    """Do something when the module is imported, which is healthy otherwise."""
    return Attempt(does, found, named, f"{code}\n{HEALTHY}")


def replaced(file: str, make: Change, found: str = "cannot be read", does: str = "") -> Attempt:
    """Put something else in the place of a file of metadata."""

    def change(info: Path) -> None:
        (info / file).unlink(missing_ok=True)
        make(info / file)

    return Attempt(does, found, None if file == "entry_points.txt" else "", HEALTHY, change=change)


def points(text: str | bytes, found: str, does: str, named: str | None = None) -> Attempt:
    """Bring other entry points."""
    return Attempt(does, found, named, HEALTHY, {"entry_points": text})


def metadata(text: str, found: str, does: str, named: str | None = "") -> Attempt:
    """Bring other metadata; `{name}` is the distribution's."""
    return Attempt(does, found, named, HEALTHY, {"metadata": text})


def trained(does: str, code: str, named: str) -> Attempt:
    """Do something when it trains."""
    return Attempt(
        does,
        "",
        named,
        HEALTHY.replace('made = self.run.output / "model"', code + "\n        made = self.run.output / 'model'"),
    )


def described(does: str, code: str, found: str = "", named: str = "") -> Attempt:
    """Have something in the class that describes itself badly."""
    return Attempt(does, found, named, HEALTHY + code)


def sparse(path: Path) -> None:
    """Write headers and a description of 100 MB that takes no room."""
    path.write_text(HEAD.format(name=path.parent.name.partition("-")[0].replace("_", "-")) + "\n")
    os.truncate(path, 100_000_000)


BYE = "ended the process with status"
ATTEMPTS: dict[str, Attempt] = {
    # metadata as files
    "metadata-fifo": replaced("METADATA", os.mkfifo, does="METADATA is a FIFO that nobody writes to"),
    "metadata-loop": replaced("METADATA", lambda path: path.symlink_to(path), does="METADATA is a loop of links"),
    "metadata-zero": replaced("METADATA", lambda path: path.symlink_to("/dev/zero"), does="METADATA is a link to /dev/zero"),
    "metadata-none": replaced("METADATA", lambda path: None, "is missing", "there is no METADATA"),
    "metadata-vast": replaced("METADATA", sparse, "", "a description of 100 MB"),
    "points-fifo": replaced("entry_points.txt", os.mkfifo, does="entry_points.txt is a FIFO"),
    "points-loop": replaced("entry_points.txt", lambda path: path.symlink_to(path), does="entry_points.txt is a loop of links"),
    "points-zero": replaced("entry_points.txt", lambda path: path.symlink_to("/dev/zero"), does="entry_points.txt leads to /dev/zero"),
    "points-folder": replaced("entry_points.txt", os.mkdir, does="entry_points.txt is a folder"),
    "points-vast": replaced(
        "entry_points.txt", lambda path: (path.touch(), os.truncate(path, 2**31)), "larger than", "entry_points.txt has 2 GiB"
    ),
    "points-latin": points(b"[gym.algorithms]\ncaf\xe9 = gym_latin:Toy\n", "cannot be read", "entry_points.txt is no UTF-8"),
    # metadata as text
    "summary-vast": metadata(HEAD + f"Summary: {'x' * 2**21}\n\n", "headers longer than", "a summary of 2 MiB"),
    "summary-escape": metadata(HEAD + "Summary: \x1b[2J\x1b]0;owned\x07\n\n", "", "a summary that clears the screen"),
    "latin-headers": Attempt(
        "METADATA is no UTF-8", "cannot be read", "", HEALTHY, {"metadata": b"Name: gym-latin-headers\nAuthor: caf\xe9\n\n"}
    ),
    "two-names": metadata(HEAD + "Name: gym-toy\n\n", "name another distribution", "METADATA has two names", None),
    "other-name": metadata(HEAD.replace("{name}", "gym-core") + "\n", "name another distribution", "METADATA says it is gym-core", None),
    "other-escape": metadata(HEAD.replace("{name}", "\x1b[31mred") + "\n", "name another distribution", "a name with an escape", None),
    "version-text": metadata(HEAD.replace("1.0", "one, or \x1b[5mtwo") + "\n", "", "a version that is none (PEP 440)"),
    "url-escape": metadata(HEAD + "Project-URL: url-escape paper, https://\x1b[2J\n\n", "", "an address of a paper with an escape"),
    "needs-nothing-real": metadata(
        HEAD + "Requires-Dist: torch>=99\n\n", "torch>=99", "it needs a torch that is not installed", "needs torch>=99"
    ),
    "needs-nonsense": metadata(
        HEAD + "Requires-Dist: gym-core >= <= !!\n\n", "cannot be read", "a requirement that is none", "cannot be read"
    ),
    "needs-itself": metadata(HEAD + "Requires-Dist: gym-needs-itself>=1\n\n", "", "it needs itself"),
    "needs-marker": metadata(HEAD + "Requires-Dist: torch>=99; extra == 'gpu'\n\n", "", "only an extra needs what is not there"),
    # entry points
    "twice": points(
        "[gym.algorithms]\ntwice = gym_twice:Toy\ntwice = gym_twice:Trainer\n", "second meaning", "one name with two meanings"
    ),
    "same-twice": points("[gym.algorithms]\nsame-twice = gym_same_twice:Toy\n" * 2, "", "the same line twice", ""),
    "slash": points("[gym.algorithms]\ngym-toy/toy = gym_slash:Toy\n", "is not `name = ", "a name with a slash"),
    "escape": points("[gym.algorithms]\n\x1b[2Jtoy = gym_escape:Toy\n", "is not `name = ", "a name that clears the screen"),
    "mark": points("[gym.algorithms]\n\u202etoy = gym_mark:Toy\n", "is not `name = ", "a name with a mark that turns it around"),
    "lookalike": points("[gym.algorithms]\nt\u043ey = gym_lookalike:Toy\n", "is not `name = ", "a name with a Cyrillic letter"),
    "lines": points("[gym.algorithms]\na\u2028b = gym_lines:Toy\n", "is not `name = ", "a name with a separator of lines"),
    "shell": points("[gym.algorithms]\n$(touch${IFS}x) = gym_shell:Toy\n", "is not `name = ", "a name that a shell would run"),
    "empty": points("[gym.algorithms]\n = gym_empty:Toy\n", "is not `name = ", "an empty name"),
    "long": points(f"[gym.algorithms]\n{'x' * 2**20} = gym_long:Toy\n", "is not `name = ", "a name of a megabyte"),
    "long-value": points(f"[gym.algorithms]\nlong-value = {'a.' * 2**19}b:C\n", "is not `name = ", "a module name of a megabyte"),
    "many-wrong": points("[gym.algorithms]\n" + "wrong\n" * 50_000, "more lines are wrong", "50,000 lines that are wrong"),
    "kind-escape": points("[gym.\x1b[2J]\nx = gym_kind_escape:Toy\n", "is no group", "a kind that clears the screen"),
    "module-missing": points("[gym.algorithms]\nmodule-missing = gym_not_there:Toy\n", "gym_not_there", "a module that is not there", "gym_not_there"),
    "attribute-missing": points("[gym.algorithms]\nattribute-missing = os:nothing\n", "AttributeError", "an attribute that is not there", "AttributeError"),
    "own-module": points("[gym.algorithms]\nown-module = os:getcwd\n", "not a subclass", "a function of Python's own", "not a subclass"),
    "steals-train": points("[gym.commands]\ntrain = gym_steals_train:Toy\nplugins = gym_steals_train:Toy\n", "is no command", "commands with the names of the kernel's"),
    "steals-list": points("[gym.commands]\nplugins.list = gym_steals_list:Toy\n--help = gym_steals_list:Toy\n", "is no command", "`plugins list` and `--help` as commands"),
    "steals-python": points("[gym.facade]\nsys.exit = gym_steals_python:Toy\npartial.x = gym_steals_python:Toy\n", "", "Python names that hide those `gym` is made of"),
    "steals-keys": points(
        "[gym.algorithms]\nsteals-keys = gym_steals_keys:Toy\n[gym.dialects]\nmodel = gym_steals_keys:Toy\nseed = gym_steals_keys:Toy\n",
        "", "keys of the kernel as marks of its dialect", "",
    ),
    "steals-kind": points("[gym.kinds]\nalgorithms = gym_steals_kind:Toy\n", "", "a kind that the kernel has already"),
    "remarks": points("[gym.remarks]\nremarks = gym_remarks:explode\n", "AttributeError", "a remark on recipes that do not use it"),
    # importing
    "raises": importing("raises", "raise RuntimeError('no \\x1b[31mluck' * 1000000)", "RuntimeError", "RuntimeError"),
    "exits": importing("SystemExit with status 0", "raise SystemExit(0)", "SystemExit", "SystemExit"),
    "interrupts": importing("KeyboardInterrupt", "raise KeyboardInterrupt", "KeyboardInterrupt", "KeyboardInterrupt"),
    "vanishes": importing("os._exit(0)", "import os; os._exit(0)", f"{BYE} 0", "os._exit(0)"),
    "aborts": importing("os.abort()", "import os; os.abort()", f"{BYE} -6", "\0-6"),
    "kills-itself": importing("SIGKILL to itself", "import os; os.kill(os.getpid(), 9)", f"{BYE} -9", "\0-9"),
    "becomes-true": importing("becomes /bin/true", "import os; os.execv('/bin/true', ['true'])", BYE, "replace the process"),
    "sleeps": importing("sleeps for ever", "import time; time.sleep(3600)", "did not end within", "did not end within"),
    "sleeps-on": importing(
        "sleeps for ever and lets nothing wake it",
        "import time\nwhile __name__ != 'x':\n    try: time.sleep(3600)\n    except BaseException: pass",
        "did not end within", None,
    ),
    "threads": importing("leaves a thread behind", "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()"),
    "thread-stays": importing(
        "leaves a thread that nothing ends", "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()", named=None
    ),
    "starts": importing("leaves a process behind", "import subprocess; subprocess.Popen(['sleep', '3'])"),
    "prints": importing("prints 30 MB", "print('\\x1b[31m' * 6_000_000)", named=None),
    "closes": importing("closes all files of the process", "import os; os.closerange(0, 50)", named=None),
    "recurses": importing("recursion without end", "def deeper(): deeper()\ndeeper()", "RecursionError", "RecursionError"),
    "shallow": importing("lets nobody recurse", "import sys; sys.setrecursionlimit(90)", "", None),
    "moves": importing("changes the working directory", "import os; os.chdir('/')"),
    "masks": importing("takes all rights from new files", "import os; os.umask(0o777)"),
    "forgets": importing("deletes the environment", "import os; os.environ.clear()", "raised", "raised"),
    "lost": importing("empties sys.path", "import sys; sys.path.clear()"),
    "locale": importing("changes the locale", "import locale; locale.setlocale(locale.LC_ALL, 'C')"),
    "warns": importing("makes every warning an error", "import warnings; warnings.simplefilter('error')"),
    "mutes": importing("turns logging off", "import logging; logging.disable(99)"),
    "patches-json": importing("patches json.dumps", "import json; json.dumps = lambda *a, **k: 1 / 0", named=None),
    "patches-pydantic": importing(
        "patches pydantic for everybody",
        "import pydantic; pydantic.BaseModel.model_json_schema = classmethod(lambda cls: {'type': 'string', '$defs': 3})", named=None,
    ),
    "patches-print": importing("patches print and open", "import builtins; builtins.open = builtins.print = None", named=None),
    "deaf": importing("catches every signal", "import signal\nfor s in (1, 2, 14, 15): signal.signal(s, signal.SIG_IGN)"),
    # the class
    "no-schema": described("a field that has no JSON schema", "Toy.model_json_schema = classmethod(lambda cls: 1 / 0)\n", "cannot be described"),
    "odd-schema": described("a schema that is none", "Toy.model_json_schema = classmethod(lambda cls: {'$ref': 3, 'properties': 4})\n", ""),
    "deep-schema": described(
        "a schema without end", "deep = {}\nfor _ in range(5000): deep = {'x': deep}\nToy.model_json_schema = classmethod(lambda cls: deep)\n", "cannot be described",
    ),
    "vast-text": described("a description of 20 MB", "Toy.__doc__ = 'x' * 20_000_000\n", "cannot be described"),
    "escape-text": described("a description that clears the screen", "Toy.__doc__ = '\\x1b[2J'\nToy.target = '\\x1b[2J'\n", "points at", None),
    "no-json": described(
        "an option that cannot be written down",
        "class Toy(Toy, arbitrary_types_allowed=True):\n    'With an object.'\n    odd: Any = object()\n    'Odd.'\n", "", "cannot be written",
    ),
    "bad-default": described(
        "a default that ends the process",
        "import os\nfrom pydantic import Field\nclass Toy(Toy):\n    'With a default.'\n    odd: int = Field(default_factory=lambda: os._exit(0))\n    'Odd.'\n",
        BYE, "os._exit(0)",
    ),
    "bad-repr": described(
        "a default that cannot be shown",
        "class Odd:\n    def __repr__(self): raise SystemExit(0)\nclass Toy(Toy, arbitrary_types_allowed=True):\n    'With an object.'\n    odd: Any = Odd()\n    'Odd.'\n",
        "cannot be described", "cannot be written",
    ),
    "bad-check": described(
        "a validator that leaves",
        "from pydantic import model_validator\nclass Toy(Toy):\n    'Leaves.'\n    @model_validator(mode='after')\n    def leave(self): raise SystemExit(0)\n",
        "", "sys.exit(0)",
    ),
    "liar": described(
        "a metaclass that says yes to everything",
        "class Yes(type):\n    __subclasscheck__ = __instancecheck__ = lambda *a: True\n"
        "    def __getattr__(cls, name): raise KeyboardInterrupt\nclass Toy(metaclass=Yes): pass\n", "not a subclass", "not a subclass",
    ),
    "many-fields": described(
        "3,000 options", "from pydantic import create_model\nToy = create_model('Toy', __base__=Toy, **{f'f{n}': (int, n) for n in range(3000)})\n", "", None
    ),
    # training
    "leaves-early": trained("os._exit(0) in the middle", "import os; os._exit(0)", "os._exit(0)"),
    "leaves-thread": trained(
        "os._exit(0) in a thread", "import os, threading, time; threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(9)", "os._exit(0)"
    ),
    "leaves-system": trained("SystemExit with status 0 in the middle", "raise SystemExit(0)", "sys.exit(0)"),
    "leaves-exec": trained("becomes /bin/true in the middle", "import os; os.execvp('true', ['true'])", "replace the process"),
}  # fmt: skip

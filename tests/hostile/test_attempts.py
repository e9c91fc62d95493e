"""Every command survives every attempt: all hostile distributions are installed at once, and each is found to be what it is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from attempts import ATTEMPTS

from gym_core.discovery import installed

PLUGIN, FAILED = 3, 1
NAMED = [name for name, attempt in ATTEMPTS.items() if attempt.named is not None]
#: What no terminal may be sent: control characters but line feeds, and marks that turn text around.
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")
COMMANDS = {
    "help": ("--help",),
    "plugins-help": ("plugins", "--help"),
    "list": ("--plugins", "list"),
    "list-json": ("plugins", "list", "--json"),
    "show": ("plugins", "show", "toy"),
    "doctor": ("doctor",),
    "doctor-json": ("doctor", "--json"),
    "check": ("plugins", "check", "--timeout", "3"),
    "check-json": ("plugins", "check", "--timeout", "4", "--json"),
    "schema": ("schema",),
    "validate": ("validate", "toy.yaml"),
    "explain": ("explain", "toy.yaml"),
    "train": ("train", "toy.yaml"),
    "trace": ("plugins", "trace", "toy.yaml"),
    "unknown-key": ("validate", "unknown.yaml"),
    "unknown-name": ("validate", "nobody.yaml"),
    "unknown-command": ("no-such-command",),
}
CODES = {
    "doctor": FAILED,
    "doctor-json": FAILED,
    "check": PLUGIN,
    "check-json": PLUGIN,
    "unknown-key": 2,
    "unknown-name": 3,
    "unknown-command": 2,
}


@pytest.fixture(scope="module")
def arena(tmp_path_factory, site_class, toy):
    """All attempts in one folder, beside the healthy plugin `toy`; what the developer has installed is set aside."""
    root = tmp_path_factory.mktemp("arena") / "site"
    root.mkdir()
    made = site_class(root)
    made.add("gym-toy", toy)
    for name, attempt in ATTEMPTS.items():
        options = {
            key: value.replace("{name}", f"gym-{name}") if isinstance(value, str) else value
            for key, value in attempt.options.items()
        }
        made.add(f"gym-{name}", attempt.code, **options)
        if attempt.change:
            attempt.change(root / f"gym_{name.replace('-', '_')}-1.0.dist-info")
    for folder in (
        b"gym-\xff\xfe-1.0",
        b"gym-\x1b[2J-1.0",
        "gym-\u202eyot-1.0".encode(),
        b"-1.0",
        b"gym-new\nline-1.0",
    ):
        strange = os.path.join(os.fsencode(root), folder + b".dist-info")
        os.makedirs(strange)  # noqa: PTH103 - its name is no text
        with open(os.path.join(strange, b"entry_points.txt"), "w") as file:
            file.write("[gym.algorithms]\nstrange = gym_toy:Toy\n")
    (root / "gym_linked-1.0.dist-info").symlink_to(root / "gym_toy-1.0.dist-info")
    (root / "gym_around-1.0.dist-info").symlink_to(root / "gym_around-1.0.dist-info")
    others = {entry.dist for group in installed().entries.values() for entry in group} - {"gym-core", "gym-manage"}
    (root.parent / "gym.toml").write_text("[plugins]\n" + "".join(f"{name} = false\n" for name in sorted(others)))
    made.recipe("toy")
    (root.parent / "unknown.yaml").write_text("algorithm: gym-toy/toy\nstepz: 3\n")
    (root.parent / "nobody.yaml").write_text("algorithm: nobody\n")
    return made


@pytest.fixture(scope="module")
def done(arena):
    """What each command does with all of them installed, and how long it takes; most of them wait for what hangs."""

    def timed(arguments):
        begun = time.monotonic()
        answer = arena.gym(*arguments, timeout=300, COLUMNS="300", GYM_IMPORT_SECONDS="2")
        return answer, time.monotonic() - begun

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(COMMANDS, pool.map(timed, COMMANDS.values()), strict=True))


@pytest.fixture(scope="module")
def found(done):
    """What `gym plugins check` says of each distribution, metadata and components together."""
    told = json.loads(done["check-json"][0].stdout)
    said = {result["dist"]: json.dumps(result["problems"]) for result in told["distributions"]}
    for problem in told["metadata"]:
        dist = problem["where"].partition("-1.0.")[0].replace("_", "-")
        said[dist] = said.get(dist, "") + json.dumps(problem)
    return said


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_survives(done, command):
    answer, seconds = done[command]
    assert answer.returncode == CODES.get(command, 0), answer.stdout[-2000:] + answer.stderr[-2000:]
    assert seconds < (200 if command in ("check", "check-json", "schema", "unknown-key") else 60)
    assert "Traceback" not in answer.stderr
    for text in (answer.stdout, answer.stderr):
        assert not OBEYED.search(text), OBEYED.search(text)
        assert len(text) < 2**20


def test_what_is_healthy_is_healthy_still(arena, done):
    assert (arena.root.parent / "runs/toy/model/weights.txt").exists()
    schema = json.loads(done["schema"][0].stdout)
    assert schema["$defs"]["algorithms.gym-toy.toy"]["properties"]["steps"]["default"] == 3
    assert "gym-toy 1.0" in done["list"][0].stdout and "writes one file" in done["show"][0].stdout.lower()
    assert json.loads(done["check-json"][0].stdout)["distributions"] and '"toy"' in done["schema"][0].stdout


@pytest.mark.parametrize("name", ATTEMPTS)
def test_each_is_found_to_be_what_it_is(found, name):
    said = found.get(f"gym-{name}", "[]")
    expected = ATTEMPTS[name].found
    assert expected in said if expected else said == "[]", said


@pytest.fixture(scope="module")
def ends(arena):
    """How a run of each ends, as many at a time as there are processors."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = pool.map(lambda name: arena.gym("train", arena.recipe(name), GYM_IMPORT_SECONDS="2"), NAMED)
        return dict(zip(NAMED, answers, strict=True))


@pytest.mark.parametrize("name", NAMED)
def test_a_recipe_that_names_it_ends_as_it_should(arena, ends, name):
    attempt, answer = ATTEMPTS[name], ends[name]
    output = arena.root.parent / "runs" / name
    if attempt.named == "":
        assert answer.returncode == 0, answer.stderr
        assert (output / "model/weights.txt").exists()
        assert json.loads((output / "run.json").read_text())["status"] == "finished"
        return
    assert answer.returncode != 0
    assert not (output / "model/weights.txt").exists()
    if attempt.named.startswith("\0"):
        assert answer.returncode == int(attempt.named[1:])
    else:
        assert attempt.named in answer.stderr and len(answer.stderr.strip().splitlines()) <= 4, answer.stderr
        assert not OBEYED.search(answer.stderr)
        if "os._exit" not in attempt.named:
            assert (
                f"gym-{name}" in answer.stderr
                or "sys.exit" in attempt.named
                or "replace" in attempt.named
                or "written" in attempt.named
            )


def test_python_names_survive(arena):
    code = "import gym, gym.train; gym.Trainer, dir(gym), dir(gym.train)"
    environment = {**os.environ, "PYTHONPATH": str(arena.root)}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=arena.root.parent, check=True)

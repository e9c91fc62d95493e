"""`llamafactory-cli`: which of Gym's commands carries out each of LLaMA-Factory's."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from gym_core import cli
from gym_core.discovery import installed
from gym_core.errors import OK, GymError, RecipeError
from gym_llamafactory_cli.words import FILES, keys_of

NAME = "llamafactory-cli"
Words = Sequence[str]


def main() -> None:
    """Run a command line and leave with its exit code."""
    sys.exit(run(sys.argv[1:], os.environ))


def run(words: Words, environment: Mapping[str, str]) -> int:
    """Run a command line and return its exit code."""
    name, *rest = words or ("help",)
    try:
        if name not in COMMANDS:
            raise RecipeError(f"there is no command `{name}`", where=NAME, fix=f"one of: {', '.join(COMMANDS)}")
        if rest and rest[0] in ("-h", "--help"):
            return cli.run([GYM.get(name, name), "--help"])
        with tempfile.TemporaryDirectory(prefix="gym-") as folder:
            for arguments in COMMANDS[name](rest, environment, Path(folder)):
                if code := cli.run(arguments):
                    return code
    except GymError as error:
        cli.report(error, False)
        return error.code
    return OK


def train(words: Words, environment: Mapping[str, str], folder: Path) -> list[list[str]]:
    """Return `gym train`, and `gym predict` where the file asks for predictions."""
    keys = keys_of(words)
    processes = environment.get("NPROC_PER_NODE", "1")
    spread = [] if processes == "1" else ["--nproc", processes]
    given = _given(words, folder)
    steps = [["train", *given, *spread]] if keys.get("do_train") or not keys.get("do_predict") else []
    return [*steps, *([["predict", *given]] if keys.get("do_predict") else [])]


def export(words: Words, environment: Mapping[str, str], folder: Path) -> list[list[str]]:
    """Return `gym export`, of a file that says all there is to say."""
    return [["export", *(words if len(words) == 1 else [_written(words, folder)])]]


def chat(words: Words, environment: Mapping[str, str], folder: Path) -> list[list[str]]:
    """Return `gym chat`."""
    return [["chat", words[0] if len(words) == 1 else _written(words, folder)]]


def api(words: Words, environment: Mapping[str, str], folder: Path) -> list[list[str]]:
    """Return `gym api`, at the address that the environment names."""
    names = (("--host", "API_HOST"), ("--port", "API_PORT"))
    where = [word for flag, name in names if name in environment for word in (flag, environment[name])]
    return [["api", words[0] if len(words) == 1 else _written(words, folder), *where]]


def predict(words: Words, environment: Mapping[str, str], folder: Path) -> list[list[str]]:
    """Return `gym predict`; questions of a benchmark are asked by `gym eval`."""
    if "task" in keys_of(words):
        raise RecipeError(
            "a `task` is a benchmark",
            where=NAME,
            key="task",
            fix="ask it: `gym eval MODEL --tasks mmlu --num_fewshot 5`",
        )
    return [["predict", *_given(words, folder)]]


def webui(words: Words, environment: Mapping[str, str], folder: Path) -> list[list[str]]:
    """Return `gym webui` of this folder, at the address that the environment names. Raises RecipeError without gym-webui."""
    if ("commands", "webui") not in installed().named:
        raise RecipeError("the web interface is not installed", where=NAME, fix="pip install gym-webui")
    names = (("--host", "GRADIO_SERVER_NAME"), ("--port", "GRADIO_SERVER_PORT"))
    return [["webui", *(word for flag, name in names if name in environment for word in (flag, environment[name]))]]


def _given(words: Words, folder: Path) -> list[str]:
    """Return what a command of Gym is given: file and `key=value` as they are, flags as a file."""
    return list(words) if words and words[0].endswith(FILES) else [_written(words, folder)]


def _written(words: Words, folder: Path) -> str:
    keys = keys_of(words)
    if not keys:
        raise RecipeError("says nothing", where=NAME, fix="name a YAML file")
    file = folder / "command-line.yaml"
    file.write_text(yaml.safe_dump(keys, sort_keys=False), encoding="utf-8")
    return str(file)


GYM = {"eval": "predict", "env": "doctor", "webchat": "webui"}  #: commands that have another name there
COMMANDS: dict[str, Callable[[Words, Mapping[str, str], Path], list[list[str]]]] = {
    "train": train,
    "export": export,
    "chat": chat,
    "api": api,
    "eval": predict,
    "predict": predict,
    "env": lambda words, environment, folder: [["doctor"]],
    "version": lambda words, environment, folder: [["--version"]],
    "help": lambda words, environment, folder: [["--help"]],
    "webui": webui,
    "webchat": webui,
}

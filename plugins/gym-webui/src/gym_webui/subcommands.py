"""Commands of Gym whose answer a page shows: each is a process of its own, with words and never a shell, for a bounded time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

from gym_core.errors import printable
from gym_serve.api.errors import HTTPProblem
from gym_webui.allowed_inputs import check_recipe
from gym_webui.site import Site

SECONDS = 300.0  #: that a question may take: the first one tokenizes data
CLI = "gym_core.cli"


class Answer(NamedTuple):
    """How a process ended, and what it wrote."""

    code: int
    out: str
    err: str


def words(module: str, *arguments: str) -> list[str]:
    """Return the command line of a module; its folder is not searched for modules."""
    return [sys.executable, "-P", "-m", module, *arguments]


def ask(site: Site, module: str, *arguments: str, seconds: float = SECONDS) -> Answer:
    """Run a module in the folder and return what it wrote. Raises HTTPProblem where it takes too long."""
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "110"}
    try:
        done = subprocess.run(
            words(module, *arguments),
            cwd=site.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise HTTPProblem(503, f"it took more than {seconds:g} s; ask in a terminal", code="too_slow") from None
    return Answer(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


@contextmanager
def unsaved(site: Site, text: str) -> Iterator[Path]:
    """Yield a hidden file of this text in the folder, so that paths mean what they mean in a saved one; it is removed."""
    path = site.folder / f".webui-{token_hex(8)}.yaml"
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
        yield path
    finally:
        path.unlink(missing_ok=True)


def meaning_of(site: Site, file: Path) -> dict[str, Any]:
    """Return what `gym_webui.recipe_report` says of a file, and as problems also what may not be said from a browser."""
    done = ask(site, "gym_webui.recipe_report", str(file))
    try:
        told: dict[str, Any] = json.loads(done.out)
    except ValueError:
        last = printable(done.err.strip().splitlines()[-1] if done.err.strip() else f"exit code {done.code}", 400)
        why = f"a plugin ended the process that read it: {last}"
        return {"written": {}, "sections": {}, "canonical": {}, "problems": [_problem(why)], "refused": True}
    refused = [problem.to_json() for problem in check_recipe(site, told["written"], told["canonical"])]
    return {**told, "problems": told["problems"] + refused, "refused": bool(refused)}


def renamed(problems: Sequence[dict[str, str]], file: Path, name: str) -> list[dict[str, str]]:
    """Return problems in which a hidden file has the name that the user knows."""
    return [
        {key: text.replace(str(file), name).replace(file.name, name) for key, text in each.items()} for each in problems
    ]


def _problem(why: str) -> dict[str, str]:
    return {"why": why, "where": "", "key": "", "fix": "`gym plugins check` says which"}

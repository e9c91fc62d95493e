"""The panel of recipes: forms and text, checks, previews and plans, files, and starting a run."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gym_core.errors import GymError
from gym_core.files import expanded, write_atomically
from gym_core.sections import SECTIONS
from gym_manage.yaml_text import dump_yaml
from gym_serve.api.errors import HTTPProblem
from gym_webui import Recipe, options, run_files
from gym_webui.pages.requests import Asked, asked, page, posted, problems_of, text_of
from gym_webui.pages.runs import start
from gym_webui.recipe_text import NAME, changed
from gym_webui.site import Page, Site, within
from gym_webui.subcommands import CLI, ask, meaning_of, renamed, unsaved

FILES = re.compile(r"[\w][\w .+-]{0,100}\.ya?ml")
ROWS = re.compile(r"[\w][\w .+-]{0,200}\.(jsonl?|csv|parquet|arrow|txt)(\.(gz|zst))?")
MOST = 5000  #: entries of the folder that are looked at for files of rows
BEGIN = """model: tiny
data: {sources: [{name: tiny-tasks}]}
algorithm: sft
adapter: lora
train: {max_steps: 50, learning_rate: 1.0e-3}
output: runs/first
"""


def build(config: Recipe, site: Site) -> Page:
    """Return the page."""

    def shown(request: Request) -> Response:
        name = request.query_params.get("file", "")
        text = _file(site, name).read_text(encoding="utf-8", errors="replace")[: 2**20] if name else BEGIN
        told = {"sections": options.sections(), "files": files(site), "known": known(site)}
        return site.render(request, "gym_webui/recipe.html", text=text, file=name, **told)

    return Page(
        (
            page("/", shown),
            asked("/form", lambda words: options.form(text_of(words, "kind"), text_of(words, "name"))),
            posted("/read", lambda body: _read(site, text_of(body, "text"))),
            posted("/set", _set),
            posted("/preview", lambda body: _preview(site, text_of(body, "text"))),
            posted("/plan", lambda body: _plan(site, text_of(body, "text"))),
            posted("/save", lambda body: _save(site, text_of(body, "name"), text_of(body, "text"))),
            posted("/start", lambda body: _start(site, text_of(body, "name"), text_of(body, "text"))),
        )
    )


def files(site: Site) -> list[str]:
    """Return the recipes that lie in the folder itself."""
    return sorted(path.name for path in site.folder.iterdir() if FILES.fullmatch(path.name) and path.is_file())[:500]


def known(site: Site) -> dict[str, list[str]]:
    """Return what `model` and `data` may name here: families and runs, and files of rows in the folder and those inside it."""
    runs = [run["run"] for run in run_files.runs(site) if run["status"] != "starting"]
    rows = [path for pattern in ("*", "*/*") for path in islice(site.folder.glob(pattern), MOST)]
    data = sorted(site.shown(path) for path in rows if ROWS.fullmatch(path.name) and path.name != "dataset_info.json")
    return {"model": [*options.choices("families"), *runs], "data": data[:500]}


def _file(site: Site, name: str) -> Path:
    path = site.inside(name)
    if not FILES.fullmatch(name) or not path.is_file():
        raise HTTPProblem(404, "there is no such recipe in the folder", "file", code="not_found")
    return path


def _read(site: Site, text: str) -> dict[str, Any]:
    """Say what a text means: its sections for the form, and its problems as `gym validate` tells them."""
    with unsaved(site, text) as file:
        told = meaning_of(site, file)
    unknown = {problem["key"] for problem in told["problems"]}  # of a typing error; other keys are of another dialect
    own = not (told["written"].keys() - {*SECTIONS} - unknown)
    converted = "" if own or not told["sections"] else dump_yaml(told["sections"])
    problems = renamed(told["problems"], file, NAME)
    return {"sections": told["sections"], "problems": problems, "own": own, "converted": converted}


def _set(body: Asked) -> dict[str, Any]:
    """Return the text with one key set; `value` is null where it is to be left out."""
    path, value = body.get("path"), body.get("value")
    fits = isinstance(path, list) and path and all(type(part) in (str, int) for part in path)
    if not fits or not isinstance(value, str | None):
        raise HTTPProblem(400, "expected a path of keys and a text", "path", code="wrong_form")
    try:
        return {"text": changed(text_of(body, "text"), path or [], value), "problems": []}
    except GymError as error:
        return {"text": None, "problems": problems_of(error)}


def _asked_of(site: Site, text: str, *command: str) -> tuple[dict[str, Any] | None, list[dict[str, str]]]:
    """Return what a command says of a text as JSON, or the problems that it has with it."""
    with unsaved(site, text) as file:
        told = meaning_of(site, file)
        if told["problems"]:
            return None, renamed(told["problems"], file, NAME)
        done = ask(site, CLI, *command, str(file), "--json")
    try:
        found = json.loads(done.out)
    except ValueError:
        found = {"problems": [{"why": done.err.strip()[-2000:], "where": "", "key": "", "fix": ""}]}
    if "problems" in found:
        return None, renamed(found["problems"], file, NAME)
    return found, []


def _preview(site: Site, text: str) -> Response:
    found, problems = _asked_of(site, text, "data", "preview")
    return HTMLResponse(site.fragment("gym_webui/preview.html", preview=found, problems=problems))


def _plan(site: Site, text: str) -> Response:
    with unsaved(site, text) as file:
        told = meaning_of(site, file)
        done = None if told["problems"] else ask(site, CLI, "plan", str(file))
    said = "" if done is None else (done.out or done.err).replace(str(file), NAME).replace(file.name, NAME)
    problems = renamed(told["problems"], file, NAME)
    return HTMLResponse(site.fragment("gym_webui/plan.html", said=said, problems=problems))


def _save(site: Site, name: str, text: str) -> dict[str, str]:
    path = site.inside(name)
    if not FILES.fullmatch(name) or (path.exists() and not path.is_file()):
        raise HTTPProblem(400, "name a file such as recipe.yaml", "name", code="wrong_name")
    with unsaved(site, text) as file:
        if meaning_of(site, file)["refused"]:
            raise HTTPProblem(
                403, "the recipe says what it may not from here: see its problems", "text", code="refused"
            )
    write_atomically(path, text)
    return {"file": name}


def _start(site: Site, name: str, text: str) -> dict[str, Any]:
    """Save a recipe and start its run. Raises HTTPProblem where it is wrong, or where the run is under way."""
    saved = site.inside(_save(site, name, text)["file"])
    told = meaning_of(site, saved)
    if told["problems"]:
        raise HTTPProblem(400, "the recipe has problems: see them beside the text", "text", code="wrong_recipe")
    output = site.folder / expanded(str(told["canonical"]["output"]))
    if output.resolve() == site.folder or not within(output, (site.folder,)):
        raise HTTPProblem(403, "the output is not below the folder that is served", "output", code="wrong_path")
    return start(site, site.inside(output.resolve().relative_to(site.folder).as_posix()), saved)

"""The panel of runs: the list, one run with its curves and its log, stopping and continuing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gym_manage.yaml_text import dump_yaml
from gym_serve.api.errors import HTTPProblem
from gym_webui import Runs, run_files
from gym_webui.background_jobs import TRAIN, launch
from gym_webui.pages.requests import Asked, asked, page, posted, text_of
from gym_webui.site import Page, Site
from gym_webui.subcommands import meaning_of

RECIPE = ".webui-recipe.yaml"  #: of a run: what continues it


def build(config: Runs, site: Site) -> Page:
    """Return the page."""

    def folder(words: Asked) -> Path:
        found = site.inside(text_of(words, "run"))
        if not found.is_dir():
            raise HTTPProblem(404, "there is no such run", "run", code="not_found")
        return found

    def shown(request: Request) -> Response:
        name = request.query_params.get("run", "")
        if not name:
            return site.render(request, "gym_webui/runs.html", folder=str(site.folder))
        place = folder({"run": name})
        record, _ = run_files.record_of(place)
        recipe = record.get("recipe") if isinstance(record.get("recipe"), dict) else {}
        text = dump_yaml(recipe)[:200_000] if recipe else ""
        return site.render(request, "gym_webui/run.html", run=site.shown(place), recipe=text)

    def stop(body: Asked) -> Any:
        place = folder(body)
        pid = run_files.process(place)
        if pid is None:
            raise HTTPProblem(409, "the run is not under way", "run", code="not_running")
        if host := run_files.elsewhere(place):
            raise HTTPProblem(409, f"it cannot be stopped from here: it is on {host}", "run", code="not_ours")
        try:
            os.kill(pid, signal.SIGTERM)  # it writes a checkpoint, and ends
        except OSError as error:
            raise HTTPProblem(
                409, f"it cannot be stopped from here: {error.strerror}", "run", code="not_ours"
            ) from None
        return {"stopping": True}

    return Page(
        (
            page("/", shown),
            asked("/list", lambda words: {"runs": run_files.runs(site)}),
            asked("/state", lambda words: run_files.brief(site, folder(words)) | {"log": run_files.log(folder(words))}),
            asked("/curves", lambda words: {"curves": run_files.curves(folder(words))}),
            posted("/stop", stop),
            posted("/continue", lambda body: start(site, folder(body), _recipe(site, folder(body)))),
        )
    )


def start(site: Site, folder: Path, recipe: Path) -> dict[str, Any]:
    """Start the run of a recipe in its folder, unless one is under way there, and return where. Raises HTTPProblem."""
    if run_files.process(folder) is not None:
        raise HTTPProblem(409, "the run is under way already", "run", code="under_way")
    told = meaning_of(site, recipe)
    if told["problems"]:
        first = told["problems"][0]
        raise HTTPProblem(400, ": ".join(filter(None, [first["key"], first["why"]])), "recipe", code="wrong_recipe")
    launch(site, folder, TRAIN, "train", str(recipe), f"output={json.dumps(str(folder), ensure_ascii=False)}")
    return {"run": site.shown(folder)}


def _recipe(site: Site, folder: Path) -> Path:
    """Write the canonical recipe of a run beside it, and return the file. Raises HTTPProblem where the record has none."""
    record, _ = run_files.record_of(folder)
    recipe = record.get("recipe")
    if not isinstance(recipe, dict):
        raise HTTPProblem(409, "its run.json holds no recipe; start it from its file", "run", code="no_recipe")
    path = folder / RECIPE
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        opened.write(dump_yaml({key: value for key, value in recipe.items() if key != "output"}))
    return path

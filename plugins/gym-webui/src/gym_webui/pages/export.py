"""The panel of exports: an exporter's form, and what `gym export` says."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gym_core.errors import printable
from gym_serve.api.errors import HTTPProblem
from gym_webui import Export, options, run_files
from gym_webui.allowed_inputs import check_options
from gym_webui.background_jobs import EXPORT, launch, log_of, tail, under_way
from gym_webui.pages.requests import Asked, asked, page, posted, text_of
from gym_webui.site import Page, Site


def build(config: Export, site: Site) -> Page:
    """Return the page."""

    def shown(request: Request) -> Response:
        done = [run["run"] for run in run_files.runs(site) if run["status"] in ("finished", "stopped", "failed")]
        chosen = request.query_params.get("run", "")
        return site.render(
            request, "gym_webui/export.html", runs=done, chosen=chosen, exporters=options.choices("exporters")
        )

    def started(body: Asked) -> Any:
        folder, name = site.inside(text_of(body, "run")), text_of(body, "exporter", 200)
        if not folder.is_dir() or name not in options.choices("exporters"):
            raise HTTPProblem(404, "there is no such run or exporter", "run", code="not_found")
        words = check_options(site, body.get("options", {}))
        launch(site, folder, EXPORT, "export", str(folder), *words, "--to", name)
        return {"run": site.shown(folder)}

    def state(words: Asked) -> Any:
        folder = site.inside(text_of(words, "run"))
        log = printable(tail(log_of(folder, EXPORT)), 100_000, keep="\n\t")
        return {"running": under_way(folder, EXPORT), "log": log, "exports": _exports(site, folder)}

    return Page(
        (
            page("/", shown),
            asked("/form", lambda words: options.form("exporters", text_of(words, "name"))),
            asked("/state", state),
            posted("/start", started),
        )
    )


def _exports(site: Site, folder: Any) -> list[str]:
    place = folder / "export"
    return sorted(site.shown(each) for each in place.iterdir() if each.name[:1] != ".")[:100] if place.is_dir() else []

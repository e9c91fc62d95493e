"""The process of the web interface: its panels, its socket and its signals."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from gym_core.errors import GymError, PluginError
from gym_core.loading import load_component
from gym_serve.api import errors
from gym_serve.api.errors import HTTPProblem
from gym_serve.api.options import ApiOptions
from gym_serve.api.server import Stoppable, listening, settings
from gym_serve.errors import RequestError
from gym_webui.access import Access
from gym_webui.kinds import Panel
from gym_webui.site import Link, Page, Site

OURS = ("recipe", "runs", "chat", "export")  #: shown without being named


def panels(names: Sequence[str]) -> list[tuple[str, Panel]]:
    """Return the panels to show, each with its name in addresses. Raises PluginError for one that is not there."""
    found: list[tuple[str, Panel]] = []
    for name in dict.fromkeys([*(f"gym-webui/{own}" for own in OURS), *names]):
        entry, cls = load_component("panels", name)
        found.append((entry.name if entry.dist == "gym-webui" else f"{entry.dist}-{entry.name}", cast("Panel", cls())))
    return found


def application(site: Site, shown: Sequence[tuple[str, Panel]], ending: ExitStack) -> Starlette:
    """Return the application of these panels, without its check of access; `ending` closes them. Raises PluginError."""
    routes: list[Mount | Route] = [Mount("/static", StaticFiles(packages=[("gym_webui", "static")]))]
    for name, panel in shown:
        page = panel.build(site=site)
        if not isinstance(page, Page):
            raise PluginError(f"the panel `{name}` built no Page", key="panel", fix="return a gym_webui.site.Page")
        site.links.append(Link(f"/{name}/", panel.title or name))
        routes.append(Mount(f"/{name}", routes=list(page.routes)))
        if page.close is not None:
            ending.callback(page.close)
    first = site.links[0].name if site.links else "/static/"
    routes.append(Route("/", lambda request: RedirectResponse(first, 303)))
    return Starlette(routes=routes, exception_handlers={GymError: _told})


def _told(request: Request, error: Exception) -> Response:
    """Return an error as JSON; what is no error of a request is one of what it asked for."""
    if isinstance(error, RequestError):
        return errors.response(error)
    return errors.response(HTTPProblem(400, str(error)[:4000], code="failed"))


def serve(
    folder: Path, allowed: Sequence[Path], options: ApiOptions, names: Sequence[str], show: Callable[[str], None]
) -> None:
    """Serve a folder until a signal. `show` is given the link that opens the pages."""
    site = Site(folder.resolve(), tuple(path.resolve() for path in allowed))
    token, chosen, socket = secrets.token_urlsafe(32), panels(names), listening(options)
    host, port = socket.getsockname()[:2]
    with ExitStack() as ending:
        app = Access(application(site, chosen, ending), options, token, port)
        config = settings(app, options, seconds=2)
        name = f"[{host}]" if ":" in str(host) else host
        show(f"serving {site.folder}; open http://{name}:{port}/?token={token}")
        asyncio.run(Stoppable(config).serve(sockets=[socket]))

"""What pages share: the folder that is served, what lies in it, and how HTML is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import BaseRoute

from gym_serve.api.errors import HTTPProblem

NAME = re.compile(r"[^/\x00-\x1f\x7f]{1,200}")  #: of a file or a folder; what begins with a dot is nobody's business


@dataclass(frozen=True)
class Page:
    """What a panel brings. `routes` lie below its name; the one at `/` is what the navigation leads to."""

    routes: Sequence[BaseRoute]
    close: Any = None
    """Called once when the server ends, where there is something to end with it."""


@dataclass(frozen=True)
class Link:
    """A page as the navigation shows it."""

    name: str
    title: str


@dataclass
class Site:
    """The folder that is served, and how its pages look."""

    folder: Path
    """Absolute, links followed. Everything that pages read or write lies in it."""
    allowed: tuple[Path, ...] = ()
    """Further folders that recipes may name, absolute, links followed."""
    links: list[Link] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the environment of templates: a name is `package/file.html`, in `templates/` of that package."""
        loader = FunctionLoader(_template)
        self._environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)

    def render(self, request: Request, template: str, **values: Any) -> HTMLResponse:
        """Return a page from a template `package/file.html`, which may extend `gym_webui/base.html`; values are escaped."""
        return HTMLResponse(self.fragment(template, links=self.links, here=request.url.path, **values))

    def fragment(self, template: str, **values: Any) -> str:
        """Return HTML from a template; values are escaped."""
        return self._environment.get_template(template).render(values)

    def inside(self, text: Any) -> Path:
        """Return the path below the folder that a request names. Raises HTTPProblem for any other: it may not even exist."""
        parts = PurePosixPath(text).parts if isinstance(text, str) and len(text) < 2000 else ()
        fits = all(NAME.fullmatch(part) and not part.startswith(".") for part in parts)
        path = self.folder.joinpath(*parts) if parts and fits else None
        if path is None or not within(path, (self.folder,)):
            raise HTTPProblem(403, "the path is not below the folder that is served", "path", code="wrong_path")
        return path

    def shown(self, path: Path) -> str:
        """Return how a path below the folder is written in pages."""
        return path.relative_to(self.folder).as_posix()


def within(path: Path, roots: Sequence[Path]) -> bool:
    """Whether a path lies below one of these folders, links followed; what is not there counts as it would lie."""
    try:
        real = path.resolve()
    except (OSError, RuntimeError, ValueError):  # a link to itself, a null
        return False
    return any(real.is_relative_to(root) for root in roots)


def _template(name: str) -> str:
    package, _, file = name.partition("/")
    return (files(package) / "templates" / file).read_text(encoding="utf-8")

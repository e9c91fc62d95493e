"""What a recipe, a model and an option may say that comes from a browser: nothing outside the folder, and no code of a model.

Whoever holds the token is trusted with what Gym does in the folder. A page that a recipe was pasted from is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gym_core.errors import GymError, Problem
from gym_core.files import expanded
from gym_serve.api.errors import HTTPProblem
from gym_webui.site import Site, within

REMOTE = re.compile(r"remote_?code", re.IGNORECASE)  #: in the name of an option that has code of a model run
PLACE = re.compile(
    r"(?:file:/*)?(?P<path>(?:/|~|\.\.?(?:/|\Z)|(?:[^\s:]+/)?\.\.(?:/|\Z)).*)", re.DOTALL | re.IGNORECASE
)
MODEL = re.compile(r"[A-Za-z0-9_][\w.+ -]*(/[\w.+ -]+)*\Z")  #: a family, an id on the Hub, or a path below the folder
_REMOTE = "code of a model is not run from the web interface"
FILE = re.compile(r"\.(ya?ml|json)\Z", re.IGNORECASE)  #: which could say more than a model
KEY = re.compile(r"[a-z_]\w*(\.[a-z_]\w*)*\Z")


def check_recipe(site: Site, written: Mapping[str, Any], canonical: Mapping[str, Any]) -> list[Problem]:
    """Return what a recipe, as it is written or as it is meant, says that it may not from here."""
    found = [Problem(_REMOTE, key=key) for key, value in _leaves(written) if value and REMOTE.search(key)]
    for key, value in _leaves(canonical):
        if REMOTE.search(key) and value:
            found.append(Problem(_REMOTE, key=key))
        elif isinstance(value, str) and outside(site, value):
            fix = "start with `gym webui FOLDER --allow PLACE`, or use the command line"
            found.append(Problem(f"`{value:.80}` is not below the folder that is served", key=key, fix=fix))
    return [*dict.fromkeys(found)]


def outside(site: Site, value: str) -> bool:
    """Whether a text is a path that leads out of what may be read; a text that is no path is not."""
    if "\n" in value or len(value) > 4000:
        return False
    written = PLACE.fullmatch(value)
    try:
        path = site.folder / expanded(written["path"] if written else value)
    except (GymError, ValueError):
        return True
    return not within(path, (site.folder, *site.allowed))


def check_model(site: Site, name: Any) -> str:
    """Return the name of a model to be served. Raises HTTPProblem for what is no name, and for what lies elsewhere."""
    if (
        not isinstance(name, str)
        or not (MODEL.match(name) or name.startswith("/"))
        or len(name) > 500
        or FILE.search(name)
    ):
        raise HTTPProblem(400, "this is no name of a model or a run", "model", code="wrong_model")
    if ".." in name.split("/") or outside(site, name):
        raise HTTPProblem(403, "the model is not below the folder that is served", "model", code="wrong_path")
    return name


def check_options(site: Site, options: Any) -> Sequence[str]:
    """Return options of a component as `key=value`. Raises HTTPProblem for what is none or may not be said from here."""
    if not isinstance(options, Mapping) or not all(isinstance(value, str) for value in options.values()):
        raise HTTPProblem(400, "options are texts by name", "options", code="wrong_form")
    for key, value in options.items():
        if not KEY.match(key) or REMOTE.search(key) or REMOTE.search(value) or outside(site, value.strip("'\"")):
            raise HTTPProblem(403, "this option may not be set from here", key[:100], code="wrong_option")
    return [f"{key}={value}" for key, value in options.items()]


def _leaves(value: Any, around: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of plain data with its dotted key."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{around}.{key}" if around else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{around}[{number}]")
    else:
        yield around, value

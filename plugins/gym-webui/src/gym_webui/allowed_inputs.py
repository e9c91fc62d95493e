"""What a recipe, a model and an option may say that comes from a browser: nothing outside the folder, and no code of a model.

Whoever holds the token is trusted with what Gym does in the folder. A page that a recipe was pasted from is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gym_core.errors import GymError, Problem
from gym_core.files import expanded
from gym_core.yamlfile import parse_scalar
from gym_serve.api.errors import HTTPProblem
from gym_webui.site import Site, within

REMOTE = re.compile(r"remote_?code", re.IGNORECASE)  #: in the name of an option that has code of a model run
PLACE = re.compile(
    r"(?:(?:file|local):/*)?(?P<path>(?:/|~|\.\.?(?:/|\Z)|(?:[^\s:]+/)?\.\.(?:/|\Z)).*)", re.DOTALL | re.IGNORECASE
)
MODEL = re.compile(r"[A-Za-z0-9_][\w.+ -]*(/[\w.+ -]+)*\Z")  #: a family, or an id on the Hub
LONGEST = 4096  #: bytes of a path that a system opens
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
    """Whether a text is a path, or a chain such as `zip://a::/b`, that leads out of what may be read; prose is not."""
    return any(_leads_out(site, part.strip()) for part in value.split("::"))


def _leads_out(site: Site, value: str) -> bool:
    written = PLACE.fullmatch(value)
    try:
        path = site.folder / expanded(written["path"] if written else value)
    except (GymError, ValueError):
        return True
    if len(str(path)) > LONGEST:  # no system opens it, unless `..` makes it shorter first; to follow it takes minutes
        return written is not None or ".." in path.parts
    return not within(path, (site.folder, *site.allowed))


def check_model(site: Site, name: Any) -> str:
    """Return the name of a model to be served. Raises HTTPProblem for what is no name, and for what lies elsewhere."""
    fits = isinstance(name, str) and len(name) <= 500 and name.isprintable() and not FILE.search(name)
    if not fits or not (MODEL.match(name) or (name.strip("./") and (site.folder / name).exists())):
        raise HTTPProblem(400, "this is no name of a model or a run", "model", code="wrong_model")
    if ".." in name.split("/") or outside(site, name):
        raise HTTPProblem(403, "the model is not below the folder that is served", "model", code="wrong_path")
    return name


def check_options(site: Site, options: Any) -> Sequence[str]:
    """Return options of a component as `key=value`. Raises GymError for what is none or may not be said from here."""
    if not isinstance(options, Mapping) or not all(isinstance(value, str) for value in options.values()):
        raise HTTPProblem(400, "options are texts by name", "options", code="wrong_form")
    for key, text in options.items():
        leaves = [*_leaves(parse_scalar(text), key)]
        refused = any(REMOTE.search(f"{name}={value}") or outside(site, str(value)) for name, value in leaves)
        if not KEY.match(key) or refused:
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

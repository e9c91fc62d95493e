"""The `namespace` of chat templates, through which no template gets at what Python hides behind underscores."""

from __future__ import annotations

from typing import Any

import jinja2
from jinja2.utils import Namespace


class TemplateNamespace(Namespace):
    """Jinja's `namespace` that takes no underscore names."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        """Take initial values as `dict` does."""
        values = dict(*args[1:], **kwargs)
        for name in values:
            _no_underscore(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a name."""
        _no_underscore(name)
        super().__setitem__(name, value)


def _no_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no name like {name!r}")

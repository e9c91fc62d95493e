"""The chat template that a model is served with, where it does not carry its own: a name, or a Jinja file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gym_core import GymError, sections
from gym_core.component import Slot
from gym_core.files import expanded
from gym_core.sections import Findings
from gym_data.kinds import Template
from gym_serve.options import report

JINJA = (".jinja", ".jinja2", ".j2")  #: endings of files that hold a template


def template_file(template: str | Mapping[str, Any] | None) -> str | None:
    """Return the text of a Jinja file; None for a name, or none at all. Raises GymError where it cannot be read."""
    if not isinstance(template, str) or Path(template).suffix not in JINJA:
        return None
    try:
        return expanded(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GymError(f"the template cannot be read: {error}", where=template, key="template") from None


def named_template(name: str | Mapping[str, Any]) -> Template:
    """Return a template by its name, or with options. Raises RecipeError where there is none."""
    findings = Findings({})
    found = sections.component(Slot("templates"), name, ("template",), findings)
    report(findings)
    assert isinstance(found, Template)
    return found


def template_text(template: str | Mapping[str, Any], token_id: Callable[[str], int | None]) -> str:
    """Return the text of a template, for words that are no `Tokenizer`. Raises GymError where they lack tokens that it needs."""
    text = template_file(template)
    if text is not None:
        return text
    named = named_template(template)
    lacking = named.lacking(lambda token: token_id(token) is not None)
    built = named.build()
    if lacking or not isinstance(built, str):
        why = f"needs {', '.join(lacking)}, which the model does not have" if lacking else "is no text of Jinja"
        raise GymError(f"the template `{template}` {why}", key="template", fix="leave it out, or name another one")
    return built

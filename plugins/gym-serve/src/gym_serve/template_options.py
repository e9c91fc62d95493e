"""What a client tells the chat template of a model: any plain value that the template reads; others are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from gym_serve.api.errors import HTTPProblem
from gym_serve.contract import PLAIN, ServedModel

LONGEST = 8192  #: characters of a value


def _plain(value: Any) -> Any:
    if not isinstance(value, PLAIN):
        raise ValueError("options of templates are plain values: a text, a number, or true or false")
    if isinstance(value, str) and len(value) > LONGEST:
        raise ValueError(f"a text may have {LONGEST:,} characters")
    return value


TemplateOptions = Annotated[
    dict[Annotated[str, Field(max_length=128)], Annotated[Any, AfterValidator(_plain)]], Field(max_length=32)
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
KEY, THINKING, EFFORT = "chat_template_kwargs", "enable_thinking", "reasoning_effort"


def template_options(
    model: ServedModel, given: TemplateOptions | None, effort: Effort | None, thinking: bool | None
) -> Mapping[str, Any]:
    """Return what the template of a model is told; `thinking` is what the server says where a request does not.

    Raises HTTPProblem, naming the field, for what the template does not read.
    """
    options = {name: value for name, value in (given or {}).items() if value is not None}
    fields = {name: f"{KEY}.{name}" for name in options}
    if effort is not None and EFFORT in options:
        raise HTTPProblem(400, f"says the same as `{KEY}.{EFFORT}`: leave one of them out", key=EFFORT)
    if effort is not None:
        options[EFFORT], fields[EFFORT] = effort, EFFORT
    read = model.template_options
    if options.get(THINKING) is False and THINKING not in read:
        del options[THINKING]  # it does so anyway
    for name in options.keys() - read:
        known = f"it reads {', '.join(f'`{each}`' for each in sorted(read))}" if read else "it reads no options"
        raise HTTPProblem(400, f"the chat template of this model does not read `{name}`: {known}", key=fields[name])
    if thinking is not None and THINKING in read:
        options.setdefault(THINKING, thinking)
    return options

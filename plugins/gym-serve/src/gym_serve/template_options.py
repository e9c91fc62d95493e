"""What the chat template of a model is told: any plain value that the template reads; others are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from gym_core import RecipeError
from gym_core.component import Config
from gym_serve.contract import PLAIN, ServedModel
from gym_serve.errors import BadRequest

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


class TemplateSettings(Config):
    """What chat templates are told where a request says nothing else."""

    enable_thinking: bool | None = None
    """Whether models think before they answer, where their template can say so and a request does not."""
    chat_template_kwargs: TemplateOptions = {}
    """What chat templates are told that read it, where a request says nothing else: `chat_template_kwargs.mode=brief`."""

    def check(self, *models: ServedModel) -> None:
        """Raise RecipeError for what the template of none of the models reads."""
        read = frozenset[str]().union(*(model.template_options for model in models))
        try:
            _told(read, self.chat_template_kwargs, {name: f"{KEY}.{name}" for name in self.chat_template_kwargs})
        except BadRequest as error:
            raise RecipeError(error.problems) from error

    def read_by(self, model: ServedModel) -> dict[str, Any]:
        """Return what the template of a model reads of it."""
        told = {THINKING: self.enable_thinking, **self.chat_template_kwargs}
        return {name: value for name, value in told.items() if value is not None and name in model.template_options}


def template_options(
    model: ServedModel, given: TemplateOptions | None, effort: Effort | None, usual: TemplateSettings
) -> Mapping[str, Any]:
    """Return what the template of a model is told; `usual` is what counts where a request says nothing.

    Raises BadRequest, naming the field, for what the template does not read.
    """
    options = {name: value for name, value in (given or {}).items() if value is not None}
    fields = {name: f"{KEY}.{name}" for name in options}
    if effort is not None:
        plain = effort == "none" and EFFORT not in model.template_options  # which is not to think at all
        name, value = (THINKING, False) if plain else (EFFORT, effort)
        if name in options:
            raise BadRequest(f"says the same as `{KEY}.{name}`: leave one of them out", key=EFFORT)
        options[name], fields[name] = value, EFFORT
    always = model.answers is not None and model.answers.begins_thinking
    return usual.read_by(model) | _told(model.template_options, options, fields, always)


def _told(
    read: frozenset[str], options: Mapping[str, Any], fields: Mapping[str, str], always: bool = False
) -> dict[str, Any]:
    """Return options that a template reads, which may `always` begin a thought.

    Raises BadRequest for others, with the field of the first.
    """
    found = dict(options)
    if found.get(THINKING) is False and THINKING not in read and not always:
        del found[THINKING]  # it does so anyway
    for name in found.keys() - read:
        known = f"it reads {', '.join(f'`{each}`' for each in sorted(read))}" if read else "it reads no options"
        raise BadRequest(f"the chat template of this model does not read `{name}`: {known}", key=fields[name])
    return found

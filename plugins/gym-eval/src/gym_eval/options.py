"""The options of `gym eval`, and how its words are read: `key=value` as everywhere, or `--key value` as lm-eval has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, model_validator

from gym_core import RecipeError, sections
from gym_core.component import Component, Config, Slot
from gym_core.dialect import apply_override
from gym_core.discovery import nearest
from gym_core.loading import load_component
from gym_core.sections import Findings
from gym_core.yamlfile import parse_scalar
from gym_eval.kinds import Evaluator
from gym_serve.contract import ModelSource
from gym_serve.options import name_and_path, report

USUAL = "lm_eval"
EVALUATOR = "evaluator"
COMMAND = "command line"


class EvalOptions(Config):
    """Which model is evaluated, by which evaluator, and what it is compared with."""

    model: str
    """A run, a checkpoint, an artifact, a model, a family or a Hub id."""
    evaluator: Annotated[SerializeAsAny[Evaluator], Slot("evaluators", default=USUAL)]
    """What asks the questions. It has options of its own; those of `lm_eval` are listed here."""
    compare: str | None = None
    """Another model that is asked the same questions, such as the base of a fine-tune: how much changed, and how sure that is."""
    max_drop: Annotated[float, Field(ge=0)] | None = None
    """Most that a score may be worse than that of `compare`: exit code 1 unless whole intervals of 95 % say it is no more."""
    template: str | None = None
    """Chat template, where the model does not carry its own: a name, or a Jinja file."""
    base: str | None = None
    """Where the base of the model lies now, if that is an adapter or a delta whose base was moved."""
    tenants: Path | None = None
    """Store of variants of the model."""
    tenant: str | None = None
    """Variant in that store that is evaluated."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of weights; `auto` is that of their files."""
    batch_tokens: Annotated[int, Field(ge=1)] = 8192
    """Tokens of a pass, about. What questions begin with alike counts once."""
    output: Path | None = None
    """Folder for results; by default `eval` in that of the run. What no run made has none."""

    @model_validator(mode="after")
    def _compares(self) -> EvalOptions:
        if self.max_drop is not None and self.compare is None:
            raise ValueError("max_drop is how much worse than another model: name that with `compare`")
        if (self.tenant is None) != (self.tenants is None):
            raise ValueError("tenant is a variant in the store `tenants`: name both")
        return self

    def source(self) -> ModelSource:
        """Return where the model is."""
        return ModelSource(*name_and_path(self.model), self.tenants, {}, self.template, self.base)

    def other(self) -> ModelSource:
        """Return where the model is that it is compared with."""
        assert self.compare is not None
        return ModelSource(*name_and_path(self.compare), template=self.template)


def read(words: Sequence[str]) -> EvalOptions:
    """Return the options that words mean: a model, `key=value`, `--key value`, and `--key` for what is switched on.

    Keys that are none of this command are options of the evaluator. Raises RecipeError with every problem, PluginError where no
    package brings the evaluator.
    """
    evaluator = _evaluator(words)
    known = {**evaluator.model_fields, **EvalOptions.model_fields}
    models: list[str] = []
    given: list[tuple[str, Any]] = []
    left = list(words)
    while left:
        word = left.pop(0)
        dashed = word.startswith("--")
        key, equals, text = word.removeprefix("--").partition("=")
        key = key.replace("-", "_") if dashed else key
        if not dashed and not (equals and _is_key(key)):
            models.append(word)
            continue
        if key.partition(".")[0] not in known:
            raise _unknown(word.partition("=")[0], key, known)
        if not equals:
            switch = key in known and known[key].annotation is bool
            text = "true" if switch or not left or left[0].startswith("--") else left.pop(0)
        given.append((key, parse_scalar(text)))
    if len(models) != 1:
        why = f"one model is evaluated, and {len(models)} are named{': ' * bool(models)}{', '.join(models)}"
        raise RecipeError(why, where=COMMAND, fix="name a run, such as `runs/first`, or a model")
    return _made(models[0], given, evaluator)


def _made(model: str, given: Sequence[tuple[str, Any]], evaluator: type[Component]) -> EvalOptions:
    data: dict[str, Any] = {"model": model, EVALUATOR: {}}
    marks: dict[sections.Path, str] = {}
    for key, value in given:
        if key == EVALUATOR:
            data[EVALUATOR]["name"] = value
            continue
        inside = key.partition(".")[0] not in EvalOptions.model_fields
        slots = sections.nested_slots(evaluator if inside else EvalOptions)
        mark = apply_override(data[EVALUATOR] if inside else data, key, value, slots)
        marks[(EVALUATOR, *mark) if inside else mark] = COMMAND
    findings = Findings(marks)
    found = sections.config(EvalOptions, data, (), findings)
    report(findings)
    assert isinstance(found, EvalOptions)
    return found


def _evaluator(words: Sequence[str]) -> type[Component]:
    """Return the class of the evaluator that words name."""
    name = USUAL
    for word, after in zip(words, [*words[1:], ""], strict=True):
        key, equals, text = word.removeprefix("--").partition("=")
        if key == EVALUATOR and (equals or word.startswith("--")):
            name = text if equals else after
    return load_component("evaluators", name, EVALUATOR, COMMAND)[1]


def _is_key(text: str) -> bool:
    return text.replace(".", "").replace("_", "").isalnum()


def _unknown(word: str, key: str, known: Mapping[str, Any]) -> RecipeError:
    if key == "trust_remote_code":
        return RecipeError(
            "data of tasks run no code of their own", where=COMMAND, key=key, fix="leave it out; datasets 4 ended that"
        )
    near = nearest(key, known)
    fix = f"did you mean `{near}`?" if near else f"one of: {', '.join(sorted(known))}"
    return RecipeError("unknown key", where=COMMAND, key=word, fix=fix)

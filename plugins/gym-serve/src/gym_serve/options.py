"""What commands that answer have in common: which models, by which engine, within which limits."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import ByteSize, Field, SerializeAsAny
from pydantic.fields import FieldInfo

from gym_core import sections
from gym_core.component import Config, Slot
from gym_core.dialect import apply_override
from gym_core.discovery import entries, nearest
from gym_core.errors import PluginError, Problem, RecipeError
from gym_core.files import expanded
from gym_core.loading import load
from gym_core.sections import Findings
from gym_core.yamlfile import parse_scalar, read_yaml
from gym_data.kinds import Media
from gym_manage.options_command import OptionsCommand
from gym_serve.contract import Engine, Limits, ModelSource
from gym_serve.kinds import Server
from gym_serve.names import TENANT

SECTION = "serving"  #: of a YAML file with options of these commands
MODEL = "models"  #: option that the arguments of a command fill


Positive = Annotated[int, Field(ge=1)]


class ServingOptions(Config):
    """Which models answer, by which engine, within which limits."""

    models: Annotated[tuple[str, ...], Field(min_length=1)]
    """Runs, checkpoints, artifacts or models; `name=path` gives one another name than its own."""
    engine: Annotated[SerializeAsAny[Server] | None, Slot("servers")] = None
    """What computes the answers; without it, `llama_cpp` for GGUF files and `local` for all else."""
    template: str | dict[str, Any] | None = None
    """Chat template to serve with, where the model does not carry its own: a name, one with options, or a Jinja file."""
    media: Annotated[SerializeAsAny[Media] | None, Slot("media")] = None
    """How images in messages to the first model are read, such as `vision`; by default as it was trained on some, if it was."""
    base: str | None = None
    """Where the base of the first model lies now, if that is an adapter or a delta whose base was moved."""
    tenants: Path | None = None
    """Store of variants of the first model, each asked for as `model@user`."""
    adapters: Mapping[str, str] = {}
    """Directories of adapters of the first model by name, each asked for as `model@name`."""
    tenant: str | None = None
    """Adapter or variant that the plain name of the first model means."""
    max_batch: Positive = 64
    """Most replies that are decoded together."""
    queue: Annotated[int, Field(ge=0)] = 256
    """Most replies that wait beside them."""
    max_context: Positive | None = None
    """Most tokens of prompt and reply; by default what the model says."""
    max_prompt_tokens: Positive | None = None
    """Most tokens of a prompt; by default what the context leaves."""
    prefix_cache_bytes: ByteSize = ByteSize(2**28)
    """Memory for keys and values of prompts that may come again, such as `10GB`; 0 keeps none."""
    tenant_bytes: ByteSize = ByteSize(2**29)
    """Memory for adapters and deltas in use."""
    tenant_cache_bytes: ByteSize = ByteSize(2**28)
    """Memory for packed deltas read from the disk."""
    max_images: Annotated[int, Field(ge=0)] = 16
    """Most images of a request."""
    grammar_seconds: Annotated[float, Field(gt=0)] = 2.0
    """Seconds that the schema or the pattern of a request may take to compile."""

    def sources(self) -> list[ModelSource]:
        """Return the models to serve. Raises RecipeError for names that cannot be asked for."""
        found: list[ModelSource] = []
        for number, text in enumerate(self.models):
            name, path = name_and_path(text)
            if any(name == other.name for other in found):
                raise RecipeError(
                    f"two models have the name `{name}`", key=MODEL, fix="write `name=path` for one of them"
                )
            first = number == 0
            tenants, adapters, base = (self.tenants, self.adapters, self.base) if first else (None, {}, None)
            media = self.media if first else None
            found.append(ModelSource(name, path, tenants, adapters, self.template, base, media))
        for name in self.adapters:
            if not TENANT.fullmatch(name):
                raise RecipeError(f"`{name}` is no name", key="adapters", fix="use letters, digits, `_`, `-` and `.`")
        return found

    def limits(self) -> Limits:
        """Return what the engine may use."""
        own = set(Limits.__dataclass_fields__) & set(type(self).model_fields)
        return Limits(**{name: getattr(self, name) for name in own})

    def build(self) -> Engine:
        """Return the engine, with its models loaded."""
        findings = Findings({})
        engine = self.engine or sections.component(Slot("servers"), _usual(self.models), ("engine",), findings)
        report(findings)
        assert engine is not None
        built: Engine = engine.build(artifacts=self.sources(), limits=self.limits())
        return built


Options = TypeVar("Options", bound=ServingOptions)


def read(cls: type[Options], words: Sequence[str], fixed: Mapping[str, Any], beside: Collection[str] = ()) -> Options:
    """Return the options that words of a command line mean: models, files of options and `key=value`; `fixed` outweighs them.

    A file is for several commands: options that are `beside` those of this one may stand in it.

    A file is YAML with a section `serving`, or of another dialect that a package reads, by the group `gym.serving_dialects`.
    Raises RecipeError with every problem found.
    """
    data: dict[str, Any] = {}
    marks: dict[sections.Path, str] = {}
    models: list[str] = []
    for word in words:
        key, equals, text = word.partition("=")
        if word.endswith((".yaml", ".yml")) and not equals:
            given, where = _file(Path(word))
            given = {key: value for key, value in given.items() if key in cls.model_fields or key not in beside}
            data |= given
            marks |= {(name,): where.get(name, word) for name in given}
        elif equals and key.partition(".")[0] in cls.model_fields:
            marks[apply_override(data, key, parse_scalar(text), sections.nested_slots(cls))] = "command line"
        elif equals and not re.search(r"[./~]", text) and ((near := nearest(key, cls.model_fields)) or _no_model(text)):
            fix = f"did you mean `{near}`?" if near else f"one of: {', '.join(sorted(cls.model_fields))}"
            fix += "" if _no_model(text) else f" A model is named so by its path: `{key}=./{text}`"
            raise RecipeError("unknown key", where="command line", key=key, fix=fix)
        else:
            models.append(word)
    data |= {MODEL: models} if models else {}
    data |= {key: value for key, value in fixed.items() if value is not None}
    if not data.get(MODEL):
        raise RecipeError("no model is named", where="command line", fix="name a run, such as `runs/demo`, or a model")
    findings = Findings(marks)
    found = sections.config(cls, engine_named(data), (), findings)
    report(findings)
    assert isinstance(found, cls)
    return found


def _no_model(text: str) -> bool:
    """Whether the value of a key is a number or the like, and so names no model."""
    return not isinstance(parse_scalar(text), str)


class ServingCommand(OptionsCommand):
    """A command of this package: models are arguments, and many bytes are told in MiB."""

    omitted: ClassVar[frozenset[str]] = frozenset({MODEL})

    def typed(self, field: FieldInfo) -> str:
        """Return a default as it is typed."""
        value = field.default
        whole = type(value) is int and value and value % 2**20 == 0
        return f"{value >> 20}MiB" if whole else f"{value:g}" if isinstance(value, float) else super().typed(field)


def report(findings: Findings) -> None:
    """Raise RecipeError with what was found wrong, if anything was."""
    if findings.problems:
        raise RecipeError(list(dict.fromkeys(findings.problems)))


def _file(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options that a file holds, and where each of them stands."""
    document = read_yaml(path)
    data = deepcopy(document.data)
    for entry in entries("serving_dialects"):
        if entry.name in data:
            findings = Findings(dict(document.marks), folder=path.parent)
            translated = load(entry)(data, findings)
            report(findings)
            return translated, {}
    if not isinstance(data.get(SECTION), dict):
        fix = "write `serving:` with options, or name a run"
        raise RecipeError("has no section `serving`", where=str(path), key=SECTION, fix=fix)
    where = {mark[1]: place for mark, place in document.marks.items() if len(mark) == 2 and mark[0] == SECTION}
    given = _synonyms(data[SECTION], where, str(path))
    model = data.get("model")
    if isinstance(model, str) and MODEL not in given:
        given[MODEL] = [model]
    return given, {str(name): str(place) for name, place in where.items()}


SYNONYMS = {"batch_size": "max_batch", "cache_size": "prefix_cache_bytes", "model": MODEL}
FORMATS = {"gguf": "llama_cpp", "safetensors": "local"}  #: engines by the format of the model


def _synonyms(given: Mapping[str, Any], where: Mapping[Any, str], file: str) -> dict[str, Any]:
    """Return options under their own names, for those that are known by others."""
    found = {SYNONYMS.get(key, key): value for key, value in given.items()}
    if isinstance(found.get(MODEL), str):
        found[MODEL] = [found[MODEL]]
    format = found.pop("model_format", None)
    if format is not None and "engine" not in found:
        if format not in FORMATS:
            raise RecipeError(
                f"no engine is known for `{format}`",
                where=where.get("model_format", file),
                key="model_format",
                fix=f"one of: {', '.join(FORMATS)}; or set `engine`",
            )
        found["engine"] = FORMATS[format]
    if found.pop("quantization", None) is not None:
        found_problem = Problem(
            "models are served as they are stored",
            where.get("quantization", file),
            "quantization",
            "quantize it first (`gym quantize RUN`), or export it so (`gym export RUN --to gguf`), and serve that",
        )
        raise RecipeError([found_problem])
    return found


WEIGHTS = "*.safetensors"  #: in a folder that is no engine's own


def _readers() -> dict[str, str]:
    """Return the engine that reads files of an ending, by the ending."""
    found: dict[str, str] = {}
    for entry in entries("servers"):
        with suppress(PluginError):  # of an engine that nobody asked for
            found |= dict.fromkeys(load(entry).suffixes, entry.name)
    return found


def _reader(path: str) -> str | None:
    """Return the engine for a file, or for a folder of such files; None where no ending says."""
    found, readers = expanded(path), _readers()
    if found.is_dir() and not any(found.glob(WEIGHTS)):
        return next((name for suffix, name in readers.items() if any(found.glob(f"*{suffix}"))), None)
    return readers.get(found.suffix)


def engine_named(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in which options of an engine have the name of that which reads the models, where they have none."""
    engine, models = data.get("engine"), data.get(MODEL)
    if isinstance(engine, dict) and "name" not in engine and isinstance(models, list):
        return {**data, "engine": {"name": _usual(map(str, models)), **engine}}
    return dict(data)


def _usual(models: Iterable[str]) -> str:
    """Return the engine that all models are read by. Raises RecipeError where they need several."""
    readers = {name: _reader(path) or "local" for name, path in map(name_and_path, models)}
    if len(engines := dict.fromkeys(readers.values())) > 1:
        why = ", and ".join(f"`{name}` is read by the engine `{engine}`" for name, engine in readers.items())
        raise RecipeError(
            f"{why}: one server has one", key=MODEL, fix="serve them apart, each with a `port` of its own"
        )
    return next(iter(engines), "local")


def name_and_path(text: str) -> tuple[str, str]:
    """Return name and path of a model: the last part of its path is its name, where none is given."""
    name, equals, path = text.partition("=")
    if equals and "/" not in name:
        return _checked(name), path
    parts = [part for part in text.rstrip("/").split("/") if part not in ("", ".", "..", "~")]
    ending = next((each for each in _readers() if text.endswith(each)), "")
    parts[-1:] = [part.removesuffix(ending) for part in parts[-1:]]
    name = parts[-1] if parts else "model"
    if (len(parts) > 1 and name in ("model", "quantized", "best")) or name.startswith("step-"):
        name = "-".join(part for part in parts[-3:] if part not in ("checkpoints", "runs"))
    return _checked(re.sub(r"[^A-Za-z0-9_.\-]", "-", name)), text


def _checked(name: str) -> str:
    if not TENANT.fullmatch(name):
        raise RecipeError(f"`{name}` is no name for a model", key=MODEL, fix="use letters, digits, `_`, `-` and `.`")
    return name

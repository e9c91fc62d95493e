"""What holds for every distribution: entry points lead somewhere; configuration is light, documented and stable."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint, metadata
from types import FunctionType
from typing import Any, get_args

from gym_core import targets
from gym_core.component import Component, Config, load_object
from gym_core.discovery import entries
from gym_core.loading import base_class
from gym_core.sections import nested_slots
from gym_testkit import warm
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought, Distribution
from gym_testkit.law import Laws
from gym_testkit.reading import hands_on, names_read, package_of
from gym_testkit.scaffold import WITHOUT

#: What a module that `gym train` imports before it knows whether the recipe is right must not bring along.
HEAVY = ("torch", "numpy", "transformers", "datasets", "accelerate", "peft", "rich")
#: Groups whose objects are code to run rather than configuration to read.
CODE = ("gym.facade", "gym.commands")
#: Groups whose objects are no components, beside those of functions that no package is written for: readers say what they take.
PLAIN = (*CODE, "gym.dialects", "gym.hooks")
#: What a kind may ask a component to say of itself, as it is annotated there.
ANSWERS = {"bool": bool, "int": int, "int | None": int | None, "float": float, "float | None": float | None, "str": str}


def _subjects(dist: Distribution) -> Iterator[tuple[str, Any]]:
    yield from ((f"{entry.group}: {entry.name}", entry) for entry in dist.entry_points)
    yield dist.name, dist
    yield from ((f"{brought.kind}: {brought.name}", brought) for brought in dist.components)


def _is_entry(subject: object) -> bool:
    return isinstance(subject, EntryPoint)


def _is_distribution(subject: object) -> bool:
    return isinstance(subject, Distribution)


def _is_component(subject: object) -> bool:
    return isinstance(subject, Brought)


laws = Laws("package", _subjects)


@laws("every entry point leads to an object of its kind", _is_entry)
def resolves(entry: EntryPoint, bench: Bench) -> None:
    """Components are classes of their kind, and their targets can be imported."""
    loaded = entry.load()
    kind = entry.group.removeprefix("gym.")
    if entry.group in PLAIN or (kind in WITHOUT and not any(each.name == kind for each in entries("kinds"))):
        return
    base = base_class(kind)
    assert isinstance(loaded, type) and issubclass(loaded, base), f"{entry.value} is not a subclass of {base}"
    assert loaded.build is not Component.build or loaded.target, f"{entry.value} has no `target` and no `build`"
    if loaded.target:
        assert callable(load_object(loaded.target)), f"{loaded.target} cannot be called"


@laws("every `module:object` that a component class names can be imported", _is_component)
def points_at_what_is_there(brought: Brought, bench: Bench) -> None:
    """Not `target` alone: objectives, oracles, losses and what else a kind lets a class name by a string."""
    for cls in brought.cls.__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, str) and targets.REFERENCE.fullmatch(value):
                try:
                    load_object(value)
                except (ImportError, AttributeError) as error:
                    raise AssertionError(
                        f"{brought.cls.__name__}.{name} is {value}, which leads nowhere: {error}"
                    ) from None


@laws("configuration imports neither torch nor numpy", _is_distribution)
def light(dist: Distribution, bench: Bench) -> None:
    """Import every configuration module in a fresh process and look at what came along."""
    modules = sorted({entry.module for entry in dist.entry_points if entry.group not in CODE})
    script = f"import sys, importlib\n[importlib.import_module(name) for name in {modules!r}]\nprint(*sys.modules)"
    done = warm.run("-c", script, timeout=120, light=True)
    assert done.returncode == 0, done.stderr
    heavy = sorted(set(HEAVY) & set(done.stdout.split()))
    assert not heavy, f"importing {', '.join(modules)} imports {', '.join(heavy)}: move that behind `target`"


@laws("papers are those of its own components", _is_distribution)
def papers(dist: Distribution, bench: Bench) -> None:
    """A project URL `NAME paper` says where the method of a component was published, and no other name."""
    labels = [url.partition(", ")[0] for url in metadata(dist.name).get_all("Project-URL") or []]
    papers = {label.removesuffix(" paper") for label in labels if label.endswith(" paper")}
    strange = sorted(papers - {entry.name for entry in dist.entry_points})
    assert not strange, f"project.urls has a paper of {', '.join(strange)}, which is no component of {dist.name}"


@laws("says of itself what its kind asks", _is_component)
def says(brought: Brought, bench: Bench) -> None:
    """Every question of its kind about the options alone has an answer of the class that the kind promises."""
    sample = brought.sample()
    for name, method in vars(base_class(brought.kind)).items():
        if isinstance(method, FunctionType) and not name.startswith("_"):
            asked = inspect.signature(method)
            if [*asked.parameters] == ["self"] and asked.return_annotation in ANSWERS:
                found = getattr(sample, name)()
                assert isinstance(found, ANSWERS[asked.return_annotation]), f"`{name}` returned {found!r}"


@laws("every component class is documented", _is_component)
def class_documented(brought: Brought, bench: Bench) -> None:
    """The class has a docstring of its own."""
    assert (brought.cls.__dict__.get("__doc__") or "").strip(), f"{brought.cls.__name__} has no docstring"


@laws("every field is documented", _is_component)
def fields_documented(brought: Brought, bench: Bench) -> None:
    """Each option has a docstring, those of nested groups too; what may change when a run is resumed is an option."""
    for cls in _groups(brought.cls):
        unknown = cls.changeable - cls.model_fields.keys()
        assert not unknown, f"{cls.__name__}.changeable names what is no option: {', '.join(sorted(unknown))}"
        for name, field in cls.model_fields.items():
            assert (field.description or "").strip(), f"{cls.__name__}.{name} has no docstring below it"


@laws("every option is read", _is_component)
def options_are_read(brought: Brought, bench: Bench) -> None:
    """Some code names it: of its package, of a base that has the option too, or of a module of a plugin that they import.

    Code that hands all options on at once names none, and is believed.
    """
    cls = brought.cls
    references = [
        value for value in vars(cls).values() if isinstance(value, str) and targets.REFERENCE.fullmatch(value)
    ]
    whole = {cls.__module__, *(value.partition(":")[0] for value in references)}
    if package_of(cls.target or cls.__module__) != package_of(cls.__module__) or any(map(hands_on, whole)):
        return
    for group in _groups(cls):
        declared = [base for base in group.__mro__ if base not in (Config, Component) and issubclass(base, Config)]
        for name in group.model_fields:
            packages = {package_of(base.__module__) for base in declared if name in inspect.get_annotations(base)}
            assert any(name in names_read(package) for package in packages), (
                f"{group.__name__}.{name} is read by no code of {', '.join(sorted(packages))}: it does nothing"
            )


@laws("the schema round-trips", _is_component)
def round_trips(brought: Brought, bench: Bench) -> None:
    """Defaults written as JSON and read again are the defaults, and every option is in the JSON schema."""
    sample = brought.sample()
    nested = {name: getattr(sample, name) for name in nested_slots(brought.cls)}  # components have this law themselves
    written = json.loads(sample.model_dump_json(exclude=set(nested)))
    assert brought.cls.model_validate(written | nested) == sample
    assert set(brought.cls.model_json_schema().get("properties", {})) == set(brought.cls.model_fields)


def _groups(cls: type[Config]) -> Iterator[type[Config]]:
    """Yield a config class and the config classes of its fields, however deep."""
    yield cls
    for field in cls.model_fields.values():
        for part in _parts(field.annotation):
            if isinstance(part, type) and issubclass(part, Config) and not issubclass(part, Component):
                yield from _groups(part)


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)

"""What an installed distribution brings: its entry points, the recipes of its README, the classes of its components.

It reads the distribution's own metadata; what laws are asked of it is not known here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution as Metadata
from importlib.metadata import EntryPoint
from typing import Any

import yaml

from gym_core.component import Component
from gym_core.loading import load_component
from gym_core.sections import Findings, config, nested_slots

_BLOCK = re.compile(r"^```yaml[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Brought:
    """A component as a distribution brings it: the name that recipes use, and its class."""

    kind: str
    name: str
    cls: type[Component]

    def sample(self) -> Component:
        """Make one of the options that `options` returns; the rest are defaults."""
        found = Findings()
        made = config(self.cls, self.options(), (self.name,), found)
        assert isinstance(made, Component), "\n".join(f"{problem.key}: {problem.why}" for problem in found.problems)
        return made

    def options(self) -> dict[str, Any]:
        """Return the first of its `examples` for every field that has some, and the default component of required slots."""
        slots, options = nested_slots(self.cls), {}
        for name, field in self.cls.model_fields.items():
            slot = slots.get(name)
            if field.examples:
                options[name] = field.examples[0]
            elif not field.is_required():
                continue
            elif slot and slot.default:
                one = {slot.selector: slot.default, **Brought.named(slot.kind, slot.default).options()}
                options[name] = [one] if slot.many else one
            else:
                raise AssertionError(
                    f"{self.cls.__name__}.{name} is required: give an example for tools to use, "
                    f"`{name}: Annotated[..., Field(examples=[...])]`"
                )
        return options

    @staticmethod
    def named(kind: str, name: str) -> Brought:
        """Find a component among everything that is installed; raises `gym_core.PluginError`."""
        return Brought(kind, name, load_component(kind, name)[1])


class Distribution:
    """One installed distribution."""

    def __init__(self, name: str) -> None:
        """Find it; raises `importlib.metadata.PackageNotFoundError`."""
        self.name = name
        self._metadata = Metadata.from_name(name)

    @cached_property
    def entry_points(self) -> list[EntryPoint]:
        """Entry points of Gym's groups."""
        return sorted(entry for entry in self._metadata.entry_points if entry.group.startswith("gym."))

    @cached_property
    def scripts(self) -> list[EntryPoint]:
        """Its commands outside `gym`, by name."""
        return sorted(self._metadata.entry_points.select(group="console_scripts"))

    @cached_property
    def components(self) -> list[Brought]:
        """Component classes that load; the law of entry points reports those that do not."""
        found = []
        for entry in self.entry_points:
            loaded = self._load(entry)
            if (
                isinstance(loaded, type)
                and issubclass(loaded, Component)
                and _kind(entry) == getattr(loaded, "kind", "")
            ):
                found.append(Brought(_kind(entry), entry.name, loaded))
        return found

    @cached_property
    def readme(self) -> str:
        """The README, as it was packaged."""
        return str(self._metadata.metadata.json.get("description", ""))

    @cached_property
    def blocks(self) -> list[dict[str, Any]]:
        """Mappings in the yaml blocks of the README."""
        blocks = [yaml.safe_load(text) for text in _BLOCK.findall(self.readme)]
        return [block for block in blocks if isinstance(block, dict)]

    @property
    def recipes(self) -> list[dict[str, Any]]:
        """Recipes in the README: yaml blocks that have the keys `model` and `algorithm`."""
        return [block for block in self.blocks if {"model", "algorithm"} <= block.keys()]

    def _load(self, entry: EntryPoint) -> Any:
        try:
            return entry.load()
        except Exception:  # the border to the plugin: the law of entry points reports it
            return None


def _kind(entry: EntryPoint) -> str:
    return entry.group.removeprefix("gym.")

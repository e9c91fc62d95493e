"""Components in the details of an artifact: what its base was quantized with, what read images, what made it."""

from __future__ import annotations

from typing import Any

from gym_core import Artifact, Component, PluginError
from gym_core.discovery import entries
from gym_core.loading import load
from gym_data.kinds import Media
from gym_torch.kinds import LoadTimeQuantizer


def told_of(component: LoadTimeQuantizer | Media | None, name: str) -> dict[str, Any]:
    """Return the details of an artifact that name a component, as `name` and `name_options`; empty where there is none."""
    if component is None:
        return {}
    value = next(entry.value for entry in entries(component.kind) if load(entry) is type(component))
    return {name: value, f"{name}_options": component.model_dump(mode="json")}


def quantizer_of(artifact: Artifact) -> LoadTimeQuantizer | None:
    """Return the quantizer of the base of an artifact. Raises PluginError where its package is not installed."""
    found: LoadTimeQuantizer | None = _named(artifact, "quantizers", "quantizer", "its base was quantized")
    return found


def media_of(artifact: Artifact) -> Media | None:
    """Return what read images when a model was trained: whoever asks it reads them alike. Raises what `quantizer_of` raises."""
    found: Media | None = _named(artifact, "media", "media", "images were read")
    return found


def passed_on(artifact: Artifact) -> dict[str, Any]:
    """Return the details of an artifact that hold of whatever is made of it as well: how images are read."""
    return {name: artifact.details[name] for name in ("media", "media_options") if name in artifact.details}


def maker_of(artifact: Artifact, group: str, made: str, what: str) -> Any:
    """Return the component that an artifact names, as `module:class`. Raises PluginError where it is missing."""
    entry = next((entry for entry in entries(group) if entry.value == made), None)
    if entry is None:
        raise PluginError(
            f"{what} by {made}, which is not installed", where=str(artifact.path), fix="install its package"
        )
    return load(entry)


def _named(artifact: Artifact, group: str, name: str, what: str) -> Any:
    made = artifact.details.get(name)
    if made is None:
        return None
    options: dict[str, Any] = artifact.details.get(f"{name}_options", {})
    component: Component = maker_of(artifact, group, made, what)(**options)
    return component

"""The four hooks of a run, called through a pluggy manager that is made for that run.

A plugin of `gym.hooks` wraps or replaces a hook with `@hookimpl`, and is active only where a recipe names it in `hooks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pluggy

from gym_core.artifact import Artifact
from gym_core.discovery import Entry
from gym_core.errors import PluginError, RecipeError
from gym_core.kinds import Exporter
from gym_core.loading import find, load
from gym_core.run import Run

hookspec = pluggy.HookspecMarker("gym")
hookimpl = pluggy.HookimplMarker("gym")


@runtime_checkable
class Trainer(Protocol):
    """What `build_trainer` returns."""

    def train(self) -> Artifact:
        """Train to the end, resuming where an earlier process stopped, and return what was made."""


class HookSpecs:
    """The hook specifications, each with its default, which is called last. The first result other than None is used."""

    @hookspec(firstresult=True)
    @hookimpl(trylast=True)
    def load_model(self, run: Run) -> Any:
        """Load the model of the recipe. Called once, first."""
        return run.recipe.model.build(run=run) if run.recipe.model else None

    @hookspec(firstresult=True)
    @hookimpl(trylast=True)
    def build_trainer(self, run: Run, model: Any) -> Trainer | None:
        """Make the trainer: an object whose `train()` returns an `Artifact`. Called after `load_model`."""
        return run.recipe.algorithm.build(run=run, model=model)

    @hookspec(firstresult=True)
    @hookimpl(trylast=True)
    def quantize(self, run: Run, artifact: Artifact, into: Path) -> Artifact | None:
        """Make the trained artifact smaller, in `into`. Called after training, when the recipe has a `quantization` for then."""
        assert run.recipe.quantization
        return run.recipe.quantization.build().quantize(run, artifact, into)

    @hookspec(firstresult=True)
    @hookimpl(trylast=True)
    def export(self, run: Run, artifact: Artifact, exporter: Exporter, into: Path) -> Path | None:
        """Write the artifact for another runtime under `into`. Called once for each entry of `export`."""
        exporter.carries(artifact)
        return exporter.build().export(artifact, into)


#: The type that each hook has to return, and the key of the component that its default builds.
_RETURNS = {"load_model": object, "build_trainer": Trainer, "quantize": Artifact, "export": Path}
_KEYS = {"load_model": "model", "build_trainer": "algorithm", "quantize": "quantization", "export": "export"}


def _check(outcome: pluggy.Result[Any], hook: str, called: Sequence[pluggy.HookImpl], given: Mapping[str, Any]) -> None:
    """Raise PluginError where a hook did not return what a run needs, such as a wrapper that forgets to return."""
    made, key = outcome.get_result(), _KEYS[hook]
    component = given.get("exporter") or getattr(given["run"].recipe, key)
    lost = isinstance(made, Path) and not made.exists()
    if component is None or (made is not None and isinstance(made, _RETURNS[hook]) and not lost):
        return
    plugins = [one.plugin_name for one in called if one.plugin_name != "defaults"]
    why = f"{hook}: {' or '.join(plugins) or repr(component)[:50]} returned {made!r:.60}"
    raise PluginError(why, key="hooks" if plugins else key, fix=f"see `{hook}` in docs/hooks.md")


def manager_for(names: Sequence[str]) -> pluggy.PluginManager:
    """Make the manager of one run. Raises RecipeError for a plugin named twice, PluginError for one that cannot be used."""
    manager = pluggy.PluginManager("gym")
    manager.add_hookspecs(HookSpecs)
    manager.register(HookSpecs(), "defaults")
    manager.add_hookcall_monitoring(lambda *_: None, _check)
    for position, name in enumerate(names):
        entry = find("hooks", name, key=f"hooks[{position}]")
        if manager.has_plugin(entry.qualified):
            raise RecipeError(f"`{name}` is named twice", key=f"hooks[{position}]", fix="name it once")
        _register(entry, manager)
    return manager


def _register(entry: Entry, manager: pluggy.PluginManager) -> None:
    """Load a hook plugin, made without arguments where it is a class, and add it to a manager."""
    plugin = load(entry)
    try:
        made = plugin() if isinstance(plugin, type) else plugin
    except Exception as error:
        why, fix = f"{entry.value}() raised {type(error).__name__}: {error}", f"update or uninstall {entry.dist}"
        raise PluginError(why, where=entry.title, fix=fix) from error
    try:
        manager.register(made, entry.qualified)
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        why = f"its hooks do not fit: {str(error).strip().splitlines()[-1].strip()}"
        raise PluginError(why, where=entry.title, fix="the signatures are in docs/hooks.md") from error

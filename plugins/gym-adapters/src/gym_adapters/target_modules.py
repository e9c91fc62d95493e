"""Module names as a recipe writes them, matched against those a model has."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from gym_core import GymError


def within(path: str, name: str) -> bool:
    """Whether `name` (`mlp`, or more of the path: `mlp.up_proj`) is the module at `path` or one around it."""
    return f".{name}." in f".{path}."


def ends(names: Iterable[str], paths: Iterable[str], others: Iterable[str] = ()) -> list[str]:
    """Return the paths of what the names are or hold, from the name on: of `mlp`, `mlp.up_proj` and what else is in it.

    Where one of `others` ends so too, which is not meant, the whole path.
    """
    dotted = [f".{path}." for path in paths]
    found = {(path[path.index(f".{name}.") :], path) for name in names for path in dotted if f".{name}." in path}
    mistaken = [f".{path}." for path in others]
    return sorted({(path if any(other.endswith(end) for other in mistaken) else end)[1:-1] for end, path in found})


def require(wanted: Iterable[str], paths: Iterable[str], key: str) -> None:
    """Raise `GymError` for the first wanted name that is in none of the module paths, listing what there is."""
    there = list(paths)
    for name in wanted:
        if not any(within(path, name) for path in there):
            have = sorted({part for path in there for part in path.split(".") if not part.isdigit()})
            fix = "did you mean `all`?" if name.replace("_", "-") == "all-linear" else f"it has: {', '.join(have)}"
            raise GymError(f"the model has no module `{name}`", key=key, fix=fix)


def norm_names(model: nn.Module) -> list[str]:
    """Return the last parts of the names of what normalizes."""
    return sorted({name.rpartition(".")[2] for name in norm_paths(model)})


def norm_paths(model: nn.Module) -> list[str]:
    """Return the paths of what normalizes: layers with one vector or two, and no layer inside."""
    found = []
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        leaf = next(module.children(), None) is None
        if own and leaf and all(weight.dim() == 1 for weight in own) and "norm" in type(module).__name__.lower():
            found.append(name)
    return found

"""Where a model lies on this machine: a family that a package brings, a folder, or a Hub repository."""

from __future__ import annotations

import re
from pathlib import Path

from gym_core.discovery import catalogue, entries, nearest
from gym_core.errors import GymError, RecipeError
from gym_core.loading import find, load

#: Pickles are never fetched; a model's own code is, and runs only where a recipe sets `trust_remote_code`.
_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py"]
_WEIGHTS = ["*.safetensors"]
_NOT_MODEL = ["*/*.safetensors", "consolidated*.safetensors"]  # the same weights again, in another layout
_HUB_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")


def locate(name: str, revision: str | None = None, weights: bool = True, key: str = "") -> Path:
    """Return the local directory of a model: a family, a folder, or a Hub id, which is fetched on first use.

    `weights=False` asks for configuration and tokenizer alone; `key` is what errors call the name. Raises RecipeError when
    there is no such model, GymError when the Hub cannot be reached.
    """
    folder = Path(name).expanduser()
    is_path = name.startswith((".", "~")) or folder.is_absolute()
    if not is_path and _is_family(name):
        if (folder / "config.json").is_file():
            raise RecipeError(f"`{name}` is a family and a folder here", key=key, fix=f"write `./{name}`")
        family: Path = load(find("families", name))().build()
        return family
    if is_path or folder.is_dir():
        return _checked(folder, weights, key)
    if not _HUB_ID.fullmatch(name):
        raise RecipeError(f"there is no folder `{name}`, and it cannot be a Hub id", key=key, fix=_advice(name))
    return _checked(_fetch(name, revision, weights, key), weights, key)


def _is_family(name: str) -> bool:
    return any(name in (entry.name, entry.qualified) for entry in entries("families"))


def is_hub_id(name: str) -> bool:
    """Return whether a name that `locate` knows is that of a repository on the Hub, and no family or folder."""
    here = name.startswith((".", "~", "/")) or Path(name).expanduser().is_dir()
    return not _is_family(name) and not here and bool(_HUB_ID.fullmatch(name))


def lasting(name: str) -> str:
    """Return what names the same model wherever a command is run: a folder by its absolute path, all else as it is."""
    return name if _is_family(name) or is_hub_id(name) else str(Path(name).expanduser().resolve())


def package_of(name: str) -> str:
    """Return the package that brings a family of this name, where that is not installed and no folder bears the name."""
    return "" if _is_family(name) or Path(name).expanduser().is_dir() else catalogue().get(f"families/{name}", "")


def _checked(folder: Path, weights: bool, key: str) -> Path:
    if not (folder / "config.json").is_file():
        inner = next((child.parent for child in sorted(folder.glob("*/config.json"))), None)
        fix = f"did you mean `{inner}`?" if inner else _advice(folder.name)
        why = "has no config.json, so it holds no model" if folder.is_dir() else "there is no such folder"
        raise RecipeError(why, where=str(folder), key=key, fix=fix)
    if weights and not any(folder.glob("*.safetensors")):
        pickle = next((path.name for end in ("bin", "pt", "pth") for path in sorted(folder.glob(f"*.{end}"))), "")
        why = f"{pickle} is a pickle, which can run code when it is read" if pickle else "there are no weights here"
        raise RecipeError(why, where=str(folder), key=key, fix="save the weights as safetensors")
    return folder


def _fetch(name: str, revision: str | None, weights: bool, key: str) -> Path:
    missing = f"`{name}` is no installed family and no folder"
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        why = f"{missing}, and fetching it from the Hub needs huggingface_hub"
        raise GymError(why, key=key, fix=f"pip install huggingface_hub; {_advice(name)}") from None
    wanted = _FILES + (_WEIGHTS if weights else [])
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted, ignore_patterns=_NOT_MODEL))
    except errors.RevisionNotFoundError:
        raise RecipeError(f"the Hub has no revision `{revision}` of `{name}`", key=key, fix="look it up") from None
    except errors.RepositoryNotFoundError:
        raise RecipeError(f"{missing}, and the Hub shows you no such model", key=key, fix=_advice(name)) from None
    except Exception as error:  # the network: whatever its libraries raise
        why = f"{missing}, and the Hub did not answer ({type(error).__name__})"
        raise GymError(why, key=key, fix=f"check the network, or give a folder; {_advice(name)}") from error


def _advice(name: str) -> str:
    if package := package_of(name):
        return f"pip install {package}"
    families = sorted({entry.name for entry in entries("families")})
    if near := nearest(name, families):
        return f"did you mean the family `{near}`?"
    return f"installed families: {', '.join(families[:10]) or 'none'}"

"""What a name of a model means on this machine: a family that a package brings, a folder, or a Hub repository."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from gym_core.artifact import Artifact
from gym_core.discovery import catalogue, entries, nearest
from gym_core.errors import GymError, RecipeError
from gym_core.files import expanded
from gym_core.loading import find, load
from gym_manage.recorded import artifact_in, is_run, recorded

#: Pickles are never fetched; a model's own code is, and runs only where a recipe sets `trust_remote_code`.
_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py"]
_WEIGHTS = ["*.safetensors"]
_NOT_MODEL = ["*/*.safetensors", "consolidated*.safetensors"]  # the same weights again, in another layout
_HUB_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")


def artifact_at(name: str, revision: str | None = None, weights: bool = True, key: str = "") -> Artifact:
    """Return what a name means: a family, what lies in a folder (`gym_manage.recorded.artifact_in`), or a model on the Hub.

    A model on the Hub is fetched on first use; `weights=False` asks for its configuration and tokenizer alone. `key` is what
    errors call the name. Raises RecipeError when there is no such model, GymError when the Hub cannot be reached.
    """
    folder = expanded(name)
    is_path = name.startswith((".", "~")) or folder.is_absolute()
    if not is_path and _is_family(name):
        if (folder / "config.json").is_file():
            raise RecipeError(f"`{name}` is a family and a folder here", key=key, fix=f"write `./{name}`")
        family: Path = load(find("families", name))().build()
        return Artifact(family)
    if is_path or folder.is_dir() or is_run(folder):
        return artifact_in(folder, key, _advice(folder.name))
    if not _HUB_ID.fullmatch(name):
        raise RecipeError(f"there is no folder `{name}`, and it cannot be a Hub id", key=key, fix=_advice(name))
    return artifact_in(_fetch(name, revision, weights, key), key, _advice(name))


def locate(name: str, revision: str | None = None, weights: bool = True, key: str = "") -> Path:
    """Return the local directory of a whole model, by a name that `artifact_at` knows.

    Raises what that raises, and RecipeError for an adapter, a delta, a checkpoint of an optimizer that averages, and what has no
    weights in safetensors.
    """
    found = artifact_at(name, revision, weights, key)
    if found.kind != "model":
        raise _no_model(found, name, key)
    if found.details.get("averaged"):
        why = "the optimizer averages: this checkpoint holds the weights that it trains, not those to use"
        fix = "name the run; `train.load_best_model_at_end=true` makes that the best"
        raise RecipeError(why, where=str(found.path), key=key, fix=fix)
    if weights and not _is_family(name):
        _check_weights(found.path, key)
    return found.path


def _no_model(found: Artifact, name: str, key: str) -> RecipeError:
    of = f" of {found.base}" if found.base else ""
    why = f"holds {'a' if found.kind == 'delta' else 'an'} {found.kind}{of}, not a whole model"
    into = "" if is_run(expanded(name)) else " --into FOLDER"  # only a run has a place of its own for it
    export = f"`gym export {name}{into}` writes a whole model, to name here"
    going_on = f"; to go on with it: `model: {found.base}`, `adapter: {{name: lora, adapter_name_or_path: {name}}}`"
    trains = found.base and key == "model.path"
    known = {"adapter": export + going_on if trains else export, "delta": export}
    return RecipeError(why, where=str(found.path), key=key, fix=known.get(found.kind, "name a model"))


def specific(name: str) -> str:
    """Return the name of what a run made, or of the checkpoint, where one of a run or of its best checkpoint is given.

    All else, and a run that is not trained to its end, is left as it is.
    """
    folder = expanded(name)
    if not _is_family(name) and is_run(folder):
        with suppress(GymError):
            made, outer = recorded(folder), Path(name)
            outer = outer if made.output == folder else outer.parent.parent
            return str(outer / made.artifact.path.relative_to(made.output))
    return name


#: An option that names a model: recorded as what a run made, not as the run.
ModelName = Annotated[str, AfterValidator(specific)]


def _is_family(name: str) -> bool:
    return any(name in (entry.name, entry.qualified) for entry in entries("families"))


def is_hub_id(name: str) -> bool:
    """Return whether a name that `locate` knows is that of a repository on the Hub, and no family or folder."""
    folder = expanded(name)
    here = name.startswith((".", "~", "/")) or folder.is_dir() or is_run(folder)
    return not _is_family(name) and not here and bool(_HUB_ID.fullmatch(name))


def lasting(name: str) -> str:
    """Return what names the same model wherever a command is run: a folder by its absolute path, a run by what it made."""
    return name if _is_family(name) or is_hub_id(name) else str(expanded(specific(name)).resolve())


def called(name: str) -> str:
    """Return what people call a model that `locate` knows: of a run the name of its folder, for all make a `model`."""
    folder = expanded(name)
    if not folder.is_dir():
        return folder.name
    runs = (each.name for each in folder.resolve().parents if is_run(each))
    return next(runs, folder.resolve().name)


def package_of(name: str) -> str:
    """Return the package that brings a family of this name, where that is not installed and no folder bears the name."""
    return "" if _is_family(name) or expanded(name).is_dir() else catalogue().get(f"families/{name}", "")


def _check_weights(folder: Path, key: str) -> None:
    if not any(folder.glob("*.safetensors")):
        pickle = next((path.name for end in ("bin", "pt", "pth") for path in sorted(folder.glob(f"*.{end}"))), "")
        why = f"{pickle} is a pickle, which can run code when it is read" if pickle else "there are no weights here"
        raise RecipeError(why, where=str(folder), key=key, fix="save the weights as safetensors")


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

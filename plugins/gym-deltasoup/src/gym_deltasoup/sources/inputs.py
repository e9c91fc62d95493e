"""What is merged: directories, what they say of themselves, and whether they belong together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING

from gym_core import Artifact, GymError
from gym_core.files import expanded
from gym_data.location import lasting, locate
from gym_deltasoup.config.by_layer import ByLayer
from gym_deltasoup.sources.chat_template import template_of
from gym_deltasoup.sources.stacks import COUNT, EACH, Piece, checked, configured, is_whole
from gym_manage.recorded import artifact_in
from gym_torch.checkpoints.base_fingerprint import base_fingerprint
from gym_torch.model import fingerprint
from gym_torch.model_files import HEAD, weight_files

FREE = ("transformers_version", "architectures", "use_cache", "dtype", "torch_dtype")
"""Keys of `config.json` that change nothing that a model of these tensors computes of tokens; nor do those that end in
`_token_id`, and notes of libraries."""
SIZE = "vocab_size"  #: key of `config.json` that differs where vocabularies do
NOTES = ("_", "unsloth_")  #: how keys begin that libraries write for themselves


@dataclass(frozen=True)
class Input:
    """A directory to merge: of a run, of a checkpoint, of a model or of an adapter."""

    path: Path
    name: str = ""  #: what the report calls it; by default its path
    weight: ByLayer[float] | None = None  #: for mergers that take weights
    density: ByLayer[float] | None = None  #: share of its numbers that stays, for mergers that take one of each input
    stack: tuple[Piece, ...] = ()  #: layers of whole models that the input is made of; then `path` is that of the first


@dataclass(frozen=True)
class Opened:
    """An input that was looked at."""

    name: str
    artifact: Artifact
    files: Mapping[str, str]  #: SHA-256 of each file of weights
    base: str = "not said"  #: whether it says that it was trained from the base: `verified` by weights, by `name`, or `not said`
    stack: tuple[Piece, ...] = ()  #: what it is made of, in the folders of artifacts, where it is no whole model

    def told(self) -> dict[str, Any]:
        """Return it as plain data."""
        kind = self.artifact.kind
        return {
            "name": self.name,
            "path": str(self.artifact.path),
            "kind": kind,
            "base": self.base,
            "sha256": self.files,
            "stack": [{"path": str(one.path), "layers": [one.begin, one.end]} for one in self.stack],
        }


def opened(inputs: Sequence[Input], base: str | None, any_tokenizer: bool = False) -> list[Opened]:
    """Look at all inputs, which have one tokenizer but with `any_tokenizer`.

    Raises GymError for one that cannot be merged, or is of another kind or base than the first.
    """
    print_of = base_fingerprint(locate(base, key="base")) if base is not None else ""
    found: list[Opened] = []
    for each in inputs:
        name = each.name or str(each.path)
        if (stack := _opened_stack(name, each.stack, base)) is not None:
            found.append(stack)
            continue
        artifact = artifact_in(expanded(each.path), "inputs")
        if twice := next((one.name for one in found if one.artifact.path.resolve() == artifact.path.resolve()), ""):
            why = f"{twice} and {name} are one folder, which would count twice"
            raise GymError(
                why, where=str(artifact.path), key="inputs", fix="name it once; a weight makes it count more"
            )
        for key in ("quantization", "averaged"):
            if artifact.details.get(key):
                why = (
                    "is quantized" if key == "quantization" else "holds the weights that an averaging optimizer trains"
                )
                raise GymError(f"{name} {why}, which cannot be merged", where=str(artifact.path), key="inputs")
        if (artifact.path / HEAD).is_file():
            why = f"{name} is a reward model, and its head ({HEAD}) is not merged"
            raise GymError(why, where=str(artifact.path), key="inputs", fix="merge models that write text")
        if found and artifact.kind != found[0].artifact.kind:
            why = f"{name} is of kind {artifact.kind}, and {found[0].name} of kind {found[0].artifact.kind}"
            raise GymError(why, key="inputs", fix="merge one kind at a time; `gym export` makes a whole model of any")
        files = {file.name: fingerprint.of_file(file) for file in weight_files(artifact.path, "inputs")}
        if not files:
            raise GymError(f"{name} has no weights in safetensors", where=str(artifact.path), key="inputs")
        kept = _checked_base(name, artifact, base, print_of) if base is not None else "not said"
        found.append(Opened(name, artifact, files, kept))
    if base is None:
        _one_base([each for each in found if each.artifact.kind == "adapter" and each.artifact.base])
    _same_models(found, any_tokenizer)
    return found


def _opened_stack(name: str, stack: Sequence[Piece], base: str | None) -> Opened | None:
    """Look at the models of a stack, as at inputs; None where there is none, or where it is one whole model."""
    if not stack:
        return None
    paths = list(dict.fromkeys(one.path for one in stack))
    parts = dict(zip(paths, opened([Input(path) for path in paths], None), strict=True))
    if other := next((each for each in parts.values() if each.artifact.kind != "model"), None):
        why = f"{other.name} is of kind {other.artifact.kind}, and layers are those of whole models"
        raise GymError(why, key="inputs.stack", fix="make a whole model of it with `gym export`")
    pieces = tuple(each._replace(path=parts[each.path].artifact.path) for each in stack)
    checked(pieces)
    if is_whole(pieces):
        return None
    if base is not None:
        why = f"{name} is made of some layers, and nothing says which layers of the base they began as"
        raise GymError(why, key="base", fix="merge whole models, or without a base")
    files = {str(each.artifact.path / file): hashed for each in parts.values() for file, hashed in each.files.items()}
    return Opened(name, parts[stack[0].path].artifact, files, stack=pieces)


def _checked_base(name: str, artifact: Artifact, base: str, print_of: str) -> str:
    """Return how it was seen that an input belongs to the base. Raises GymError where it does not."""
    said = artifact.details.get("base_fingerprint")
    named = str(artifact.base or artifact.details.get("base") or "")
    if said is None and not named:
        return "not said"
    if said is None and lasting(named) == lasting(base):
        return "name"
    if said is None:
        try:
            said = base_fingerprint(locate(named, artifact.details.get("revision")))
        except GymError as error:
            why = f"{name} was trained from {named}, which is not there to be compared with {base}"
            raise GymError(why, where=str(artifact.path), key="base", fix=f"name {named} as base") from error
    if said != print_of:
        raise GymError(
            f"{name} belongs to another base: fingerprint {said[:12]}, and that of {base} is {print_of[:12]}",
            where=str(artifact.path),
            key="base",
            fix="merge what was trained from one base; the same shapes are not enough",
        )
    return "verified"


def _one_base(named: Sequence[Opened]) -> None:
    """Raise GymError where adapters name different bases: what is added to one model says nothing of another."""
    for each in named[1:]:
        prints = [one.artifact.details.get("base_fingerprint") for one in (named[0], each)]
        bases = [one.artifact.base for one in (named[0], each)]
        same_name = lasting(bases[0]) == lasting(bases[1])
        if (same_name and None in prints) or _print_of(named[0]) == _print_of(each):
            continue
        raise GymError(
            f"{each.name} was trained from {bases[1]}, and {named[0].name} from {bases[0]}",
            where=str(each.artifact.path),
            key="inputs",
            fix="merge what was trained from one base; where both are the same model, name it as `base`",
        )


def _print_of(adapter: Opened) -> str:
    """Return the fingerprint of the base of an adapter, or its name where it is not here."""
    artifact = adapter.artifact
    try:
        said = artifact.details.get("base_fingerprint")
        return str(said or base_fingerprint(locate(artifact.base, artifact.details.get("revision"))))
    except GymError:
        return lasting(artifact.base)


def _same_models(found: Sequence[Opened], any_tokenizer: bool) -> None:
    """Raise GymError where configurations or tokenizers differ in what decides what is computed."""
    for read, what in ((computes, "configuration"), (_vocabulary, "tokenizer")):
        if any_tokenizer and what == "tokenizer":
            continue
        known = [(each, _of_stack(each, value)) for each in found if (value := read(each.artifact)) is not None]
        for each, value in known[1:]:
            first, wanted = known[0]
            differing = sorted(key for key in {*value, *wanted} if value.get(key) != wanted.get(key))
            differing = [key for key in differing if not (any_tokenizer and key == SIZE)]
            if differing:
                why = f"{each.name} has another {what} than {first.name}: `{differing[0]}` differs"
                other = what == "tokenizer" or differing == [SIZE]
                fix = (
                    "say which one the result has: `tokenizer: base`, `union` or a path; layers of one stack need one"
                    if other
                    else "merge models of one kind alone"
                )
                raise GymError(why, where=str(each.artifact.path), key="inputs", fix=fix)


def _of_stack(each: Opened, told: dict[str, Any]) -> dict[str, Any]:
    """Return what a model says of itself, with the layers that it is made of."""
    if not each.stack or COUNT not in told:
        return told
    of = configured(each.stack)
    return told | {key: of.get(key) for key in (COUNT, *EACH) if key in told}


def taken_from_first(found: Sequence[Opened], template: bool = True) -> list[str]:
    """Return what the result has of the first input alone though others have another one, for it has no mean.

    Without `template`, that is said elsewhere.
    """
    first, told = found[0], []
    if first.artifact.kind not in ("model", "adapter"):  # whose result has the files of the base
        return []
    read_of = [(_stops, "other stop tokens", "those of")]
    if template:
        read_of.insert(0, (template_of, "another chat template", "that of"))
    for read, what, has in read_of:
        kept = read(first.artifact.path)
        other = next((each for each in found[1:] if read(each.artifact.path) not in ("", kept)), None)
        if other is not None:
            told.append(f"{other.name} has {what}, and the result {has if kept else 'none, as'} {first.name}")
    return told


def _stops(path: Path) -> str:
    told = [_json(path / name) for name in ("generation_config.json", "config.json") if (path / name).is_file()]
    return next((str(each["eos_token_id"]) for each in told if each.get("eos_token_id") is not None), "")


def computes(artifact: Artifact) -> dict[str, Any] | None:
    """Return what decides what a model computes; None where it does not say.

    Of a whole model that is its configuration, in the words of this version of transformers, for each version has its own; of
    what stands beside a base it is what it says in other words than that.
    """
    if artifact.kind != "model":
        return dict(_deciding(artifact.details.get("config", {})))
    if not (artifact.path / "config.json").is_file():
        return None
    told = _json(artifact.path / "config.json")
    with suppress(Exception):
        # of an architecture that transformers does not know, or values that it refuses: as it is written
        told = CONFIG_MAPPING[told["model_type"]].from_dict(dict(told)).to_dict()
    return dict(_deciding(told))


def _deciding(told: Any) -> Any:
    if not isinstance(told, dict):
        return told
    names = [name for name in told if name not in FREE and not str(name).startswith(NOTES)]
    return {name: _deciding(told[name]) for name in names if not str(name).endswith("_token_id")}


def _vocabulary(artifact: Artifact) -> dict[str, Any] | None:
    path = artifact.path
    if (path / "tokenizer.json").is_file():
        told = _json(path / "tokenizer.json")
        return {"vocabulary": told.get("model"), "added_tokens": told.get("added_tokens")}
    model = path / "tokenizer.model"
    return {"tokenizer.model": fingerprint.of_file(model)} if model.is_file() else None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GymError(f"cannot be read: {str(error)[:100]}", where=str(path), key="inputs") from None
    return found if isinstance(found, dict) else {}

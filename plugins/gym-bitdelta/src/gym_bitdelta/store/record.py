"""What the store says of a variant. The SHA-256 of this text is the name of the version, so that none can change unnoticed."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, PositiveInt, TypeAdapter, ValidationError

from gym_bitdelta.store.user_id import check_user_id
from gym_core import Artifact, Config, GymError

NOT_EVALUATED: Literal["not evaluated"] = "not evaluated"
MOST_EVIDENCE, MOST_DETAILS = 64 * 1024, 1024 * 1024  #: bytes, as JSON
DEEPEST = 64  #: levels of mappings and lists; parsers of JSON read about 200, and a record has some itself
LONGEST_NAME = 1024  #: characters of the name of a file, with its folders

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
#: What was measured, as plain data; where nothing was, that is what stands here.
Evidence = Literal["not evaluated"] | Annotated[dict[str, JsonValue], Field(min_length=1)]
_EVIDENCE: TypeAdapter[Evidence] = TypeAdapter(Evidence)


def wrong_name(name: str) -> str:
    """Return why a file may not be called so; empty where it may. It is opened under this name in a folder, on any system."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\\" in name or PureWindowsPath(name).drive:
        return "it leads out of the artifact on some system"
    if not name.isprintable():
        return "it cannot be printed"
    return f"it has more than {LONGEST_NAME} characters" if len(name) > LONGEST_NAME else ""


def _inside(name: str) -> str:
    if why := wrong_name(name):
        raise ValueError(why)
    return name


def _of_artifact(said: dict[str, Any]) -> dict[str, Any]:
    """Return what a record says of its artifact. Raises ValueError where no artifact says so."""
    wanted = {"path": str, "kind": str, "base": str, "details": dict, "task": str}
    if said.keys() != wanted.keys() or not all(isinstance(said[key], kind) for key, kind in wanted.items()):
        raise ValueError("it is no artifact")
    return said


def _of_user(user: str) -> str:
    try:
        return check_user_id(user)
    except GymError as error:
        raise ValueError(error.problems[0].why) from None


class StoredFile(Config):
    """A file of a variant."""

    name: Annotated[str, AfterValidator(_inside)]
    """Path inside the artifact, with `/`."""
    sha256: Sha256
    bytes: Annotated[int, Field(ge=0)]


class Variant(Config):
    """A version of a user's variant."""

    format: Literal["gym-variant-1"] = "gym-variant-1"
    user: Annotated[str, AfterValidator(_of_user)]
    number: PositiveInt
    """1 for the first version of a user, and so on."""
    parent: Sha256 | None
    """The version before it; None for the first."""
    created: str
    """When it was stored, in UTC."""
    artifact: Annotated[dict[str, Any], AfterValidator(_of_artifact)]
    """Kind, base and details of the artifact."""
    files: Annotated[tuple[StoredFile, ...], Field(min_length=1)]
    quality: Evidence = NOT_EVALUATED
    """How well it does what it was made for."""
    safety: Evidence = NOT_EVALUATED
    """What it does with requests that should be refused."""

    @property
    def text(self) -> str:
        """The record as the index holds it."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    @property
    def id(self) -> str:
        """SHA-256 of the record: the name of this version."""
        return sha256(self.text)

    @property
    def bytes(self) -> int:
        """Bytes of its files."""
        return sum(each.bytes for each in self.files)

    def artifact_at(self, path: Path) -> Artifact:
        """Return the artifact whose files lie in a folder."""
        return Artifact(**{**self.artifact, "path": path})

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, with its name and its size."""
        return {"version": self.id, "bytes": self.bytes, **self.model_dump(mode="json")}


def sha256(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def now() -> str:
    """Return the time as records hold it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def plain(artifact: Artifact) -> dict[str, Any]:
    """Return what a record keeps of an artifact. Raises GymError where its details are no plain data."""
    return _plain(artifact.to_json() | {"path": "."}, "details", MOST_DETAILS)


def evidence(given: Any, key: str) -> Evidence:
    """Return evidence. Raises GymError, which names `key`, where it is empty, no plain data, not finite or too long."""
    try:
        return _EVIDENCE.validate_python(_plain(given, key, MOST_EVIDENCE))
    except ValidationError:
        raise GymError(
            "evidence is a mapping of names to plain data, with at least one entry",
            key=key,
            fix=f"give what was measured, or leave it out: it is then `{NOT_EVALUATED}`",
        ) from None


def read(user: Any, number: Any, version: Any, text: Any) -> Variant | None:
    """Return what a row of the index holds; None where it is not what was written."""
    if not isinstance(text, str) or sha256(text) != version:
        return None
    try:
        found = Variant.model_validate_json(text)
    except ValidationError:
        return None
    return found if (found.user, found.number) == (user, number) else None


def _plain(value: Any, key: str, most: int) -> Any:
    """Return a value as it is read again. Raises GymError, which names `key`, where it is no plain data, too long or too deep."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        size = len(text.encode("utf-8"))  # of lone surrogates there are none
    except (TypeError, ValueError, RecursionError) as error:
        fix = "give finite numbers, text, lists and mappings"
        raise GymError(f"this is no plain data: {error}", key=key, fix=fix) from None
    if size > most:
        raise GymError(f"this takes {size:,} bytes, and at most {most:,} may be kept", key=key, fix="keep the sums")
    found = json.loads(text)
    if _levels(found) > DEEPEST:
        raise GymError(
            f"lists and mappings lie more than {DEEPEST} deep in each other, and no record can be read so",
            key=key,
            fix="keep the sums",
        )
    return found


def _levels(value: Any) -> int:
    """Return how deep lists and mappings lie in each other; 0 of what is neither."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
    return depth

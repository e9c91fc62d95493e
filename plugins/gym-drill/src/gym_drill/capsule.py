"""A capsule: what a run recorded, in one file without weights and data, from which it can be reproduced elsewhere.

A zip whose members are stored as they are, in a fixed order and without times: the same run gives the same bytes, and what is
written of it can be no larger than the file. Capsules come from others: members are read in memory, by name, and never unpacked.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gym_core import RecipeError
from gym_core.discovery import installed
from gym_core.files import naming, replacing
from gym_core.record import RunRecord
from gym_drill.weight_outline import is_outline
from gym_manage.recorded import recorded

FORMAT = "gym-capsule-1"
SEAL = "capsule.json"  #: the first member: the format, and SHA-256 of every other member
MOST = {
    "recipe.yaml": 4,
    "run.json": 32,
    "metrics.jsonl": 512,
    "weights.json": 128,
    "packages.txt": 1,
}  #: MiB of each member
_OUTCOME = ("artifact", "trained")  #: entries of run.json that hold paths of the machine


@dataclass(frozen=True)
class Capsule:
    """What a run recorded."""

    recipe: Mapping[str, Any]  #: with the distribution of each name
    record: Mapping[str, Any]  #: run.json
    metrics: Sequence[Mapping[str, Any]]
    weights: Mapping[str, Any]  #: by name of each final tensor: see `gym_drill.weight_comparison.outline`
    packages: Sequence[str]  #: name==version of all that was installed
    name: str  #: of the run
    folder: Path | None = None  #: where the run lies, if it does here

    @property
    def identity(self) -> str:
        """A hash of what the run left."""
        told = [self.record, self.metrics, self.weights]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def capsule_of(run: Path) -> Capsule:
    """Return the capsule of a run in a folder. Raises what `recorded` raises."""
    found = recorded(run)
    record = RunRecord(found.output / "run.json").read()
    from gym_drill.weight_comparison import outline, tensors_of  # which need torch
    from gym_torch.loop.callbacks.json_lines_base import read_lines
    from gym_torch.loop.callbacks.metrics_jsonl import FILE

    for name in _OUTCOME:
        if isinstance(record.get(name), dict):
            record[name] = record[name] | {"path": Path(record[name]["path"]).name}
    output, recipe = found.output.resolve().name, found.recipe | {"output": found.output.resolve().name}
    record["recipe"] = record["recipe"] | {"output": output}
    record["exports"] = [Path(path).name for path in record.get("exports", ())]
    weights = outline(tensors_of(found.trained.path))
    folder = found.output if found.output.name not in ("", "..") else found.output.resolve()
    return Capsule(recipe, record, read_lines(found.output / FILE), weights, _installed(record), output, folder)


def _installed(record: Mapping[str, Any]) -> list[str]:
    """Return what is installed here, with the versions that the run recorded itself."""
    here = {name: folder.version for name, folder in installed().folders.items()}
    return [f"{name}=={version}" for name, version in sorted((here | record["environment"]["packages"]).items())]


def packed(capsule: Capsule) -> bytes:
    """Return the file of a capsule; the same one gives the same bytes."""
    members = {
        "recipe.yaml": yaml.safe_dump(dict(capsule.recipe), sort_keys=False, allow_unicode=True),
        "run.json": json.dumps(capsule.record, indent=1, ensure_ascii=False),
        "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in capsule.metrics),
        "weights.json": json.dumps(capsule.weights, indent=1, ensure_ascii=False),
        "packages.txt": "".join(f"{line}\n" for line in capsule.packages),
    }
    data = {name: text.encode() for name, text in members.items()}
    hashes = {name: hashlib.sha256(text).hexdigest() for name, text in data.items()}
    seal = json.dumps({"format": FORMAT, "name": capsule.name, "sha256": hashes}, indent=1, ensure_ascii=False).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, text in {SEAL: seal, **data}.items():
            member = zipfile.ZipInfo(name)  # of 1980
            member.create_system, member.external_attr = 3, 0o644 << 16
            archive.writestr(member, text)
    return buffer.getvalue()


def write(capsule: Capsule, file: Path) -> None:
    """Write the file of a capsule, all or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with naming(file), replacing(file) as building:
        building.write_bytes(packed(capsule))


def read(file: Path) -> Capsule:
    """Return what a file holds. Raises RecipeError where it is no capsule, damaged, or larger than one may be."""
    try:
        with zipfile.ZipFile(file) as archive:
            return _read(archive)
    except (zipfile.BadZipFile, ValueError, LookupError, TypeError, AttributeError) as error:
        why = str(error).strip()[:100] or type(error).__name__
    except (RecursionError, RuntimeError, EOFError, OverflowError, yaml.YAMLError) as error:
        why = type(error).__name__
    raise RecipeError(f"is no whole capsule: {why}", where=str(file), fix="get it again; `gym capsule RUN` makes one")


def _read(archive: zipfile.ZipFile) -> Capsule:
    members = archive.infolist()
    if sorted(member.filename for member in members) != sorted([SEAL, *MOST]):
        raise ValueError("its members are others")
    for member in members:
        most = MOST.get(member.filename, 1) * 2**20
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise ValueError(f"{member.filename} is compressed")
        if member.file_size > most:
            raise ValueError(f"{member.filename} has more than {most:,} bytes")
    data = {member.filename: archive.read(member) for member in members}
    seal = json.loads(data[SEAL])
    if seal["format"] != FORMAT:
        raise ValueError(f"its format is {str(seal['format'])[:40]!r}, and {FORMAT} is known here")
    for name in MOST:
        if seal["sha256"][name] != hashlib.sha256(data[name]).hexdigest():
            raise ValueError(f"{name} is damaged")
    if Path(seal["name"]).name != seal["name"] or seal["name"] in ("", ".", "..") or not seal["name"].isprintable():
        raise ValueError("its name is no name of a folder")
    capsule = Capsule(
        recipe=yaml.safe_load(data["recipe.yaml"]),
        record=json.loads(data["run.json"]),
        metrics=[json.loads(line) for line in data["metrics.jsonl"].splitlines()],
        weights=json.loads(data["weights.json"]),
        packages=data["packages.txt"].decode().splitlines(),
        name=seal["name"],
    )
    _check(capsule)
    return capsule


def _check(capsule: Capsule) -> None:
    """Raise ValueError where a capsule does not hold what every run records."""
    record: Any = capsule.record if isinstance(capsule.record, dict) else {}
    environment = record.get("environment")
    packages = environment.get("packages") if isinstance(environment, dict) else None
    mappings = (capsule.recipe, capsule.weights, record.get("settings"), record.get("trained"), packages)
    parts = ("recipe", "weights", "settings", "trained", "packages")
    found = [name for name, part in zip(parts, mappings, strict=True) if not isinstance(part, dict)]
    found += [name for name in ("machine", "code", "conditions", "data") if not isinstance(record.get(name, {}), dict)]
    items = record.get("components", [])
    if not (isinstance(items, list) and all(isinstance(item, dict) and "dist" in item for item in items)):
        found.append("components")
    if not all(isinstance(line, dict) and isinstance(line.get("step"), int) for line in capsule.metrics):
        found.append("metrics")
    if not all(isinstance(told, dict) and is_outline(told) for told in capsule.weights.values()):
        found.append("weights")
    if found:
        raise ValueError(f"its {found[0]} are not those of a run")

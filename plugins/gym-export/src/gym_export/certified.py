"""What every certified exporter builds: writes an artifact, has it compared in a fresh process, and certifies it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gym_core import Artifact, GymError
from gym_core.component import construct
from gym_export import certificate as certificates
from gym_export.certificate import UNVERIFIED, VERIFIED
from gym_export.format import Format, Logits
from gym_export.kinds import CertifiedExporter
from gym_export.process import in_fresh_process
from gym_export.source import Source
from gym_torch.checkpoints.base_fingerprint import check_base
from gym_torch.checkpoints.base_model import base_of
from gym_torch.checkpoints.checkpoint_folders import whole_by_one
from gym_torch.checkpoints.open_artifact import to_export
from gym_torch.console import say

SPARE = 16 * 2**20  #: bytes beside the weights: tokenizer, configuration, certificate


class Certified:
    """Writes and verifies artifacts of one format."""

    def __init__(self, config: CertifiedExporter, format: Format | None = None) -> None:
        """Keep the options; `format` is by default the one that the configuration names."""
        self.config = config
        self.format: Format = format or construct(config.format, config)

    def export(self, artifact: Artifact, into: Path) -> Path:
        """Write an artifact as the folder `into`, all or nothing, and return it; of a quantized model what was trained.

        Exporting the same thing again returns what is there.

        Raises:
            GymError: `into` cannot be taken, the artifact cannot be written in this format, there is no room, or what was written
                disagrees with it.
            PluginError: the adapter that made the artifact is not installed.

        """
        artifact = to_export(artifact)
        self.config.carries(artifact)
        check_base(artifact, base_of(artifact))
        identity = certificates.identity(artifact) | dict(self.format.made_from())
        if _taken(artifact, into):
            if self._there(into, identity):
                say(f"{into} holds this export already")
                return into
            raise GymError("the directory holds something else", where=str(into), fix="name another, or remove it")
        missing = self._missing(into)
        with Source(artifact) as source:
            self.format.check(source)
            _room(into, self.format.size(source) + SPARE)
            with whole_by_one(into, "the export", "the finished model") as building:
                told = self.format.write(source, building)
                left_out = self.format.left_out(source)
                figures = {} if missing else in_fresh_process(self.config, artifact, building, told)
                figures = ({"left_out": left_out} if left_out else {}) | figures
                self._certify(artifact, building, identity, figures, missing)
        say(_summary(into, figures, missing))
        if left_out:
            say(f"it leaves out {left_out}")
        return into

    def verify(self, artifact: Artifact, path: Path) -> dict[str, Any]:
        """Repeat the comparison of an export with what it was made of; return its certificate with what was measured now.

        Raises GymError where a file or the source is another one than then, or the two disagree.
        """
        artifact = to_export(artifact)
        found = certificates.read(path)
        self._is_ours(found, path)
        certificates.check_files(path, found)
        for part, now in certificates.identity(artifact).items():
            if found["source"].get(part) != now:
                why = f"the {part} is another one than the one that was exported"
                where = str(base_of(artifact) if part == "base" else artifact.path)
                raise GymError(why, where=where, fix="put it back, or export again to another folder")
        if missing := self.format.missing():
            raise GymError(
                f"it cannot be verified: {missing} is not installed", where=str(path), fix=f"pip install {missing}"
            )
        return found | in_fresh_process(self.config, artifact, path, {}) | {"status": VERIFIED}

    def reload(self, path: Path) -> Mapping[str, Any]:
        """Return the weights of an export by their names in transformers, as fp32 arrays, where it compares weights."""
        return self.format.arrays(path)

    def answers(self, artifact: Artifact, path: Path, tokens: Sequence[int]) -> Logits:
        """Return what an export answers to tokens, in its runtime. Raises GymError where that is not installed."""
        with Source(artifact) as source:
            loaded = self.format.load(source, path)
            if loaded is None:
                raise GymError(f"{self.format.missing() or 'its runtime'} is not installed", where=str(path))
            return loaded.logits(tokens)

    def _missing(self, into: Path) -> str:
        """Return what the runtime lacks. Raises GymError unless it may be written all the same."""
        missing = self.format.missing()
        if missing and not self.config.allow_unverified:
            raise GymError(
                f"{type(self.config).__name__}: {missing} is not installed, so nothing can prove that what is written is right",
                where=str(into),
                key="export.allow_unverified",
                fix=f"pip install {missing}, or set allow_unverified=true",
            )
        return missing

    def _certify(
        self, artifact: Artifact, building: Path, identity: Mapping[str, str], figures: Mapping[str, Any], missing: str
    ) -> None:
        files = certificates.hashes(building)
        if not files:
            raise GymError(f"{type(self.format).__name__} wrote nothing", where=str(building))
        told = {
            "status": UNVERIFIED if missing else VERIFIED,
            **({"missing": missing} if missing else {}),
            "exporter": _name(self.config),
            "options": self.config.model_dump(mode="json"),
            "source": dict(identity),
            "base": artifact.base,
            "task": artifact.task,
            **figures,
            "versions": certificates.versions(self.format.versions()),
            "files": files,
        }
        certificates.write(building, told)

    def _is_ours(self, found: Mapping[str, Any], path: Path) -> None:
        if found["exporter"] != _name(self.config) or found["options"] != self.config.model_dump(mode="json"):
            why = f"it is an export of {found['exporter']} with other options"
            raise GymError(
                why, where=str(path), fix="verify it as `gym export RUN --verify` does: with those of its certificate"
            )

    def _there(self, into: Path, identity: Mapping[str, str]) -> bool:
        """Whether a folder is an intact export of the same."""
        with suppress(GymError):
            found = certificates.read(into)
            self._is_ours(found, into)
            certificates.check_files(into, found)
            return bool(found["source"] == identity)
        return False


def _name(config: CertifiedExporter) -> str:
    return f"{type(config).__module__}:{type(config).__qualname__}"


def _summary(into: Path, figures: Mapping[str, Any], missing: str) -> str:
    if missing:
        return f"exported to {into}: UNVERIFIED, for {missing} is not installed"
    if "relative_difference" not in figures:
        return f"exported to {into}: read back, its weights agree"
    off = f"{figures['max_difference']:.2g} ({figures['relative_difference']:.2g} relative)"
    return f"exported to {into}: reloaded, its {figures['compared']} differ by at most {off}"


def _taken(artifact: Artifact, into: Path) -> bool:
    """Whether there is something at `into`. Raises GymError where no folder can be made there, or it would change the source."""
    if into.is_symlink():
        raise GymError("the target is a symbolic link", where=str(into), fix="name the folder itself")
    if into.exists() and not into.is_dir():
        raise GymError("the target is a file", where=str(into), fix="name a folder")
    place = into.resolve()
    for held in (artifact.path.resolve(), base_of(artifact).resolve()):
        if place == held or held in place.parents:
            raise GymError("the target lies in the model that is exported", where=str(into), fix="name another folder")
        if place in held.parents:
            raise GymError("the target holds the model that is exported", where=str(into), fix="name another folder")
    return into.exists() and any(into.iterdir())


def _room(into: Path, needed: int) -> None:
    """Raise GymError where the disk has no room for so many bytes, before the first one is written."""
    there = next(parent for parent in into.resolve().parents if parent.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise GymError(
            f"the export takes {needed / 2**20:,.0f} MiB, and {free / 2**20:,.0f} MiB are free",
            where=str(into),
            fix="make room",
        )

"""The exporter `safetensors`: any artifact becomes a plain model directory, and a certificate says how well it agrees.

Nothing appears under the target before it has been reloaded with plain transformers and compared with the artifact: every weight
with what was to be written, and what the model answers with what the artifact does, adapter and head beside the weights. Neither
model is ever in memory as a whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gym_core import Artifact, GymError
from gym_torch.checkpoints import weight_shards
from gym_torch.checkpoints.artifact import CERTIFICATE, Opened, base_of, opened, to_export
from gym_torch.checkpoints.checkpoint import whole_by_one
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer
from gym_torch.console import say
from gym_torch.model import fingerprint, mapped_weights
from gym_torch.model.adapted import skeleton, stored_dtype
from gym_torch.model.tasks import ROUNDING, Task, answers, built, probe, task_of

if TYPE_CHECKING:
    from gym_export.config import SafetensorsExporter

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Safetensors:
    """Merges, writes, reloads and compares."""

    def __init__(self, config: SafetensorsExporter) -> None:
        """Keep the options."""
        self.config = config

    def export(self, artifact: Artifact, into: Path) -> Path:
        """Write the model of an artifact as the directory `into`, all or nothing, and return it; of a quantized one what was
        trained.

        Exporting the same thing again returns what is there.

        Raises:
            GymError: `into` holds something else, the artifact cannot be opened or carried, or the reloaded model disagrees.
            PluginError: the adapter that made the artifact is not installed.

        """
        artifact = to_export(artifact)
        source = _source(artifact, self.config.model_dump(mode="json"))
        if into.exists() and any(into.iterdir()):
            if _certified(into, source):
                say(f"{into} holds this export already")
                return into
            raise GymError("the directory holds something else", where=str(into), fix="name another, or remove it")
        whole = opened(artifact)
        base = Path(whole.adapted.model.name_or_path)
        dtype = DTYPES.get(self.config.dtype) or stored_dtype(whole.adapted.model, artifact)
        with whole_by_one(into, "the export", "the finished model") as building:
            digests = self._write(whole, building, dtype)
            for holder in dict.fromkeys((base, artifact.path)):
                copy_tokenizer(holder, building)
            compared = _compare(whole, building, digests, dtype)
            certificate = {
                "source": source,
                "base": artifact.base,
                "task": artifact.task,
                "dtype": str(dtype).removeprefix("torch."),
                "weights": len(digests),
                **compared,
                "files": _hashes(building),
            }
            (building / CERTIFICATE).write_text(json.dumps(certificate, indent=1) + "\n", encoding="utf-8")
        say(
            f"exported to {into}: reloaded, its {whole.task.compared} differ by at most {compared['max_difference']:.2g} "
            f"({compared['relative_difference']:.2g} relative)"
        )
        return into

    def reload(self, path: Path) -> dict[str, Any]:
        """Load an export with plain transformers; return its weights by name, as fp32 numpy arrays."""
        model = mapped_weights.load(path, kind=task_at(path).kind, dtype=torch.float32)
        return {name: weight.detach().numpy() for name, weight in model.named_parameters()}

    def _write(self, whole: Opened, building: Path, dtype: torch.dtype) -> dict[str, str]:
        """Write configuration and weights; return a hash of each weight."""
        plain, model = whole.plain(), whole.adapted.model
        empty = skeleton(plain.config, built(plain.config, whole.task)).to(dtype)
        if self.config.dtype == "keep" and model.dtype == dtype != torch.float32:
            for name, weight in model.state_dict().items():  # what a family never rounds
                if weight.dtype == torch.float32 and name in dict(empty.named_parameters()):
                    empty.get_parameter(name).data = empty.get_parameter(name).data.float()
        config = plain.config
        config.dtype, config.architectures = str(dtype).removeprefix("torch."), [type(empty).__name__]
        config.save_pretrained(building)
        if empty.can_generate() and model.generation_config is not None:
            model.generation_config.save_pretrained(building)
        lm_head = model.get_output_embeddings()
        spare = [
            f"{path}.{part}"
            for path, module in model.named_modules()
            if module is lm_head and whole.head is not None
            for part in ("weight", "bias")
        ]
        with torch.no_grad():
            return weight_shards.write(empty, plain.weights, building, int(self.config.shard_gigabytes * 1e9), spare)


def task_at(path: Path) -> Task:
    """Return what an export is for. Raises GymError where its certificate is missing or does not say."""
    file = path / CERTIFICATE
    if not file.is_file():
        raise GymError(f"there is no {CERTIFICATE}, so this is no export", where=str(path))
    return task_of(json.loads(file.read_text(encoding="utf-8")).get("task", ""))


def _compare(whole: Opened, building: Path, digests: Mapping[str, str], dtype: torch.dtype) -> dict[str, Any]:
    """Load what was written with plain transformers and compare it; return by how much it is off, for the certificate.

    Raises GymError where a weight is not what was to be written, or the answers of the two differ by more than rounding.
    """
    again = mapped_weights.load(building, kind=whole.task.kind)
    for name, weight in weight_shards.own_weights(again).items():
        if digests.get(name) not in (weight_shards.digest(weight), weight_shards.digest(weight.to(dtype))):
            raise GymError(f"{name} does not read back as it was written", where=str(building), fix="check the disk")
    tokens = probe(again)
    wanted = answers(lambda model, ids: whole.task.wanted(model, ids, whole.head), whole.adapted.model, tokens)
    found = answers(whole.task.asked, again, tokens)
    largest, apart = float((found - wanted).abs().max()), float((found - wanted).norm())
    relative = apart / float(wanted.norm()) if apart else 0.0
    if found.shape != wanted.shape or not relative <= ROUNDING[dtype]:
        raise GymError(
            f"the exported model disagrees with the artifact: its {whole.task.compared} are {relative:.2g} off (relative)",
            where=str(building),
            fix="export with dtype=fp32; if that disagrees too, report it",
        )
    return {"probe": tokens.tolist(), "max_difference": largest, "relative_difference": relative}


def _source(artifact: Artifact, options: Mapping[str, Any]) -> str:
    """Return a hash of everything that decides what is exported."""
    base = fingerprint.of_model(base_of(artifact))
    told = artifact.to_json() | {"path": ""}
    text = json.dumps([told, base, options, _hashes(artifact.path)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _hashes(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a directory, a certificate excepted."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name != CERTIFICATE)
    return {file.relative_to(path).as_posix(): fingerprint.of_file(file) for file in sorted(files)}


def _certified(into: Path, source: str) -> bool:
    """Whether a directory is an intact export of this source."""
    file = into / CERTIFICATE
    if not file.is_file():
        return False
    certificate = json.loads(file.read_text(encoding="utf-8"))
    found = _hashes(into)
    return bool(found) and certificate.get("source") == source and certificate.get("files") == found

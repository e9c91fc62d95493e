"""Writes the delta of a fine-tune, says how good it is, and adds it to its base again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from gym_bitdelta import community, evidence
from gym_bitdelta.config.base import DeltaOptions
from gym_bitdelta.delta import file
from gym_bitdelta.delta.header import Zero
from gym_bitdelta.delta.records import Record
from gym_bitdelta.distillation import distill
from gym_bitdelta.encoding import Encoder, ranked_of
from gym_bitdelta.enforcement.safety import Safety
from gym_bitdelta.models import Models
from gym_bitdelta.store.evidence_check import MEASURED, check_artifact, of_file
from gym_core import Artifact, GymError, Run
from gym_core.discovery import entries
from gym_core.loading import load
from gym_core.record import plain
from gym_data.location import locate
from gym_quant.post_training import calibration
from gym_torch.checkpoints.base_fingerprint import base_fingerprint, check_base
from gym_torch.checkpoints.checkpoint_folders import whole_by_one
from gym_torch.checkpoints.load_delta import DeltaCodec
from gym_torch.checkpoints.max_kl import check_kl
from gym_torch.console import say, warn
from gym_torch.model import fingerprint
from gym_torch.model.stored_precisions import stored_dtype
from gym_torch.model_files import weight_files
from gym_torch.recorded_components import passed_on

EVIDENCE = "delta.json"
BETTER = "more bits, or more steps of distillation; what was trained is there"


class BitDeltaQuantizer(DeltaCodec):
    """Makes artifacts of kind `delta`: a directory with `delta.safetensors`, and what was measured beside it."""

    def __init__(self, config: DeltaOptions) -> None:
        """Keep the options."""
        self.config = config

    def quantize(self, run: Run, artifact: Artifact, into: Path) -> Artifact:
        """Write what an artifact changed in its base as the directory `into`, all or nothing, and return it.

        Doing the same thing again returns what is there.

        Raises:
            GymError: the artifact does not say what its base is, was trained from other weights, or is another architecture;
                `into` holds something else, or is damaged; the result is further from the fine-tune than `max_kl`, or no scale
                of it holds `safety_threshold`; the disk does not take it.

        """
        where = base_of(artifact)
        name = base_fingerprint(where)
        check_base(artifact, where)
        safety = Safety(self.config, run, artifact, where)
        source = self._source(run, artifact, where, name, safety)
        if into.exists() and any(into.iterdir()):
            if _source_of(into) == source:
                there = Artifact.read(into)
                check_artifact(there)
                say(f"{into} holds this delta already")
                return there
            raise GymError("the directory holds something else", where=str(into), fix="name another, or remove it")
        began = time.monotonic()
        samples = calibration.draw(self.config, run, where)
        models = Models(artifact, where, computing=samples is not None or safety.asks)
        encoder = Encoder(self.config, models.base, models.tuned, ranked_of(self.config, artifact.kind == "adapter"))
        with safety, whole_by_one(into, "the delta", "the trained model") as building:
            safety.measure(models, samples.holdout if samples else None)
            wanted = samples.calibration if samples and self.config.calibrate else None
            records: Mapping[str, Record] = encoder.records(wanted)
            told: dict[str, Any] = {"distillation": None, "holdout": None}
            if safety.teacher_harms and self.config.data is None and self.config.distill_steps:
                warn(
                    "safety: nothing is distilled: the fine-tune is harmful, and `quantization.data` names no benign text"
                )
            elif samples and self.config.distill_steps:
                records, told["distillation"] = self._distilled(run, models, records, samples)
            records, told["safety"] = safety.enforce(records, encoder, models)
            if samples:
                student = models.again() if models.changed else models.base  # which nobody looks at any more
                told["holdout"] = evidence.held_out(models.base, student, models.tuned, records, samples.holdout)
                told["samples"] = samples.told
                check_kl(told["holdout"]["kl"], self.config.max_kl, "base and delta", str(artifact.path), BETTER)
            provenance = {"made_from": source, "safety": told["safety"], **self.provenance()}
            delta = file.made(name, records, self.config.said(), provenance, models.changed)
            file.write(building / file.NAME, delta)
            self._check_size(building / file.NAME)
            told |= evidence.sizes(artifact, where, building / file.NAME, records)
            told |= {"source": source, "seconds": time.monotonic() - began, "squared_errors": encoder.errors}
            told |= {"options": self.config.model_dump(mode="json"), MEASURED: of_file(building / file.NAME)}
            (building / EVIDENCE).write_text(json.dumps(plain(told), indent=1) + "\n", encoding="utf-8")
            (building / "README.md").write_text(evidence.card(type(self.config).__name__, told), encoding="utf-8")
            evidence.copy_new_tokenizer(artifact.path, where, building)
            bound = {key: told[key] for key in ("safety", MEASURED)}
            made = self._artifact(building, artifact, name, models, bound)
            made.record()
        say(
            f"wrote the delta to {into}: {told['file_bytes']:,} bytes, {told['bits_per_weight']:.2f} bits per coded weight"
        )
        if self.config.enable_deltasoup:
            community.contribute(run, replace(made, path=into))
        return replace(made, path=into)

    def changes(self, artifact: Artifact, base: Path) -> Iterator[tuple[str, Tensor]]:
        """Yield what is added to each weight that changed.

        Raises GymError for a damaged file, one that is not the file that was measured, or another base.
        """
        check_artifact(artifact)
        delta = file.read(artifact.path / file.NAME)
        delta.check_base(base_fingerprint(base), str(base))
        delta.check_size(2 * sum(path.stat().st_size for path in weight_files(base)))  # of 4 bits at least
        for name, record in delta.records.items():
            if not isinstance(record.entry, Zero):
                yield name, record.values()

    def provenance(self) -> Mapping[str, Any]:
        """Return what the header says beside the source and the safety."""
        return {"deltasoup": True} if self.config.enable_deltasoup else {}

    def _check_size(self, made: Path) -> None:
        """Raise GymError where a file is larger than it may be."""
        size, most = made.stat().st_size, self.config.budget()
        if most is not None and size > most:
            raise GymError(
                f"the file takes {size:,} bytes, above max_bytes: {most:,}, for what is measured or was projected",
                key="quantization.max_bytes",
                fix="raise it, or project no layers: leave `safety_unaligned` out",
            )

    def _distilled(
        self, run: Run, models: Models, records: Mapping[str, Record], samples: calibration.Samples
    ) -> tuple[dict[str, Record], dict[str, Any]]:
        """Return the records with the best scales, and what was measured."""
        both, seed = (samples.calibration, samples.holdout), run.recipe.train.seed
        return distill(self.config, models.tuned, models.again(), records, *both, seed)

    def _artifact(
        self, path: Path, artifact: Artifact, name: str, models: Models, measured: Mapping[str, Any]
    ) -> Artifact:
        maker = next(entry.value for entry in entries("quantizers") if load(entry) is type(self.config))
        details = {
            "delta": maker,
            "options": self.config.without_components(),
            "base_fingerprint": name,
            **measured,
            "dtype": str(stored_dtype(models.tuned, artifact)).removeprefix("torch."),
            **({"config": dict(models.changed)} if models.changed else {}),
            **{key: artifact.details[key] for key in ("revision",) if key in artifact.details},
            **passed_on(artifact),
        }
        return Artifact(path, "delta", base_name(artifact), details, artifact.task)

    def _source(self, run: Run, artifact: Artifact, where: Path, base: str, safety: Safety) -> str:
        """Return a hash of everything that decides what is written: of data the samples, for a file may change under its name."""
        data = calibration.fingerprint(self.config, run, where)
        told = [type(self.config).__name__, self.config.model_dump(mode="json"), data, run.recipe.train.seed, base]
        told.append(safety.identity)
        files = (path for pattern in ("*.safetensors", "*.json") for path in artifact.path.glob(pattern))
        held = sorted((path.name, fingerprint.of_file(path)) for path in files)
        text = json.dumps([told, held, artifact.kind, artifact.details], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


def base_name(artifact: Artifact) -> str:
    """Return what the base of an artifact is opened by. Raises GymError where it does not say."""
    named = artifact.base or artifact.details.get("base")
    if artifact.kind == "delta":
        raise GymError("it is a delta already", where=str(artifact.path), fix="quantize what it was made from")
    if artifact.task != "causal-lm":
        raise GymError(f"models for `{artifact.task}` have no deltas, only causal-lm", where=str(artifact.path))
    if not named:
        raise GymError(
            "it does not say which base it was trained from, so nobody knows what changed",
            where=str(artifact.path),
            key="quantization",
            fix="quantize what a run made, or give the artifact `details: {base: ...}`",
        )
    return str(named)


def base_of(artifact: Artifact) -> Path:
    """Return the directory of the base of an artifact. Raises what `base_name` and `locate` raise."""
    return locate(base_name(artifact), artifact.details.get("revision"))


def _source_of(path: Path) -> str:
    kept = path / EVIDENCE
    return str(json.loads(kept.read_text(encoding="utf-8")).get("source")) if kept.is_file() else ""

"""The exporter `safetensors`: any artifact becomes a plain model directory, and a certificate says how well it agrees.

Nothing appears under the target before it has been reloaded with plain transformers and compared with the artifact.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_core import Artifact, GymError, PluginError, locate
from gym_core.discovery import entries
from gym_core.loading import load
from gym_core.outputlock import OutputLock
from gym_torch.adapted import Adapted, Full, stored_dtype
from gym_torch.backend import check_weights
from gym_torch.checkpoints.checkpoint import whole_or_gone
from gym_torch.console import say

if TYPE_CHECKING:
    from gym_torch.config import SafetensorsExporter

CERTIFICATE = "certificate.json"
PROBE = 32  #: tokens that both models are asked about
#: how far the logits may be off, relative to their norm, when weights are rounded to a precision
ROUNDING = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BESIDE = (
    "tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "chat_template.*",
    "vocab.json", "vocab.txt", "merges.txt", "generation_config.json",
)  # fmt: skip


class Safetensors:
    """Merges, writes, reloads and compares."""

    def __init__(self, config: SafetensorsExporter) -> None:
        """Keep the options."""
        self.config = config

    def export(self, artifact: Artifact, into: Path) -> Path:
        """Write the model of an artifact as the directory `into`, all or nothing, and return it.

        Exporting the same thing again returns what is there.

        Raises:
            GymError: `into` holds something else, the artifact cannot be opened, or the reloaded model disagrees.
            PluginError: the adapter that made the artifact is not installed.

        """
        source = _fingerprint(artifact, self.config.model_dump(mode="json"))
        if into.exists() and any(into.iterdir()):
            if _certified(into, source):
                say(f"{into} holds this export already")
                return into
            raise GymError("the directory holds something else", where=str(into), fix="name another, or remove it")
        adapted = open_artifact(artifact)
        tokens = probe(adapted.model)
        expected = logits_of(adapted.model, tokens)
        dtype = DTYPES.get(self.config.dtype, stored_dtype(adapted.model))
        merged = adapted.merged().to(dtype)
        with _building(into) as building:
            merged.save_pretrained(building, max_shard_size=int(self.config.shard_gigabytes * 1e9))
            for holder in dict.fromkeys((Path(adapted.model.name_or_path), artifact.path)):
                copy_tokenizer(holder, building)
            found = logits_of(_load(building), tokens)
            largest = float((found - expected).abs().max())
            relative = float((found - expected).norm() / expected.norm())
            if not relative <= ROUNDING[dtype]:
                raise GymError(
                    f"the exported model disagrees with the artifact: its logits are {relative:.2g} off (relative)",
                    where=str(into),
                    fix="export with dtype=fp32; if that disagrees too, report it",
                )
            certificate = {
                "source": source,
                "base": artifact.base,
                "dtype": str(dtype).removeprefix("torch."),
                "probe": tokens.tolist(),
                "max_difference": largest,
                "relative_difference": relative,
                "files": _hashes(building),
            }
            (building / CERTIFICATE).write_text(json.dumps(certificate, indent=1) + "\n", encoding="utf-8")
        say(f"exported to {into}: reloaded, its logits differ by at most {largest:.2g} ({relative:.2g} relative)")
        return into

    def reload(self, path: Path) -> dict[str, Any]:
        """Load an export with plain transformers; return its weights by name, as fp32 numpy arrays."""
        return {name: weight.detach().numpy() for name, weight in _load(path).named_parameters()}


def open_artifact(artifact: Artifact) -> Adapted:
    """Load what a run made, in fp32 and with its adapter beside the weights, not merged.

    Raises:
        GymError: it is no model and no adapter, or does not say which adapter made it.
        PluginError: that adapter is not installed.

    """
    if artifact.kind == "model":
        return Full(None, model=_load(artifact.path))
    maker = artifact.details.get("adapter")
    if artifact.kind != "adapter" or not maker:
        raise GymError(f"this {artifact.kind} does not say what made it", where=str(artifact.path))
    entry = next((entry for entry in entries("adapters") if entry.value == maker), None)
    if entry is None:
        raise PluginError(
            f"the adapter was made by {maker}, which is not installed",
            where=str(artifact.path),
            fix="install its package",
        )
    changed = artifact.details.get("config", {})  # such as positions that were scaled for training
    adapted: Adapted = load(entry)(**artifact.details.get("options", {})).build(
        model=_load(locate(artifact.base), changed)
    )
    adapted.load(adapted.read(artifact.path))
    return adapted


def copy_tokenizer(source: Path, into: Path) -> None:
    """Copy the files of the tokenizer, the chat template and the stop tokens from one model directory to another."""
    for pattern in BESIDE:
        for file in sorted(source.glob(pattern)):
            shutil.copyfile(file, into / file.name)


def _load(path: Path, changed: Mapping[str, Any] = MappingProxyType({})) -> PreTrainedModel:
    """Load a model in fp32, with these entries of its configuration changed."""
    check_weights(path)
    shape = AutoConfig.from_pretrained(path, local_files_only=True)
    shape.get_text_config().update(changed)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path, config=shape, dtype=torch.float32, use_safetensors=True, local_files_only=True
    )
    return model.eval()


def probe(model: PreTrainedModel) -> Tensor:
    """Return token ids `[1, PROBE]` from all over the vocabulary."""
    return (torch.arange(PROBE) * 7919 + 13).remainder(model.config.get_text_config().vocab_size)[None]


@torch.no_grad()
def logits_of(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Return the logits of tokens `[rows, length]`."""
    logits: Tensor = model.eval()(tokens, use_cache=False).logits
    return logits


def _fingerprint(artifact: Artifact, options: Mapping[str, Any]) -> str:
    """Return a hash of everything that decides what is exported."""
    parts = [artifact.kind, artifact.base, artifact.details.get("adapter"), options, _hashes(artifact.path)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _hashes(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a directory, a certificate excepted."""
    found = {}
    for file in sorted(file for file in path.rglob("*") if file.is_file() and file.name != CERTIFICATE):
        with file.open("rb") as data:
            found[file.relative_to(path).as_posix()] = hashlib.file_digest(data, "sha256").hexdigest()
    return found


def _certified(into: Path, source: str) -> bool:
    """Whether a directory is an intact export of this source."""
    file = into / CERTIFICATE
    if not file.is_file():
        return False
    certificate = json.loads(file.read_text(encoding="utf-8"))
    return certificate.get("source") == source and certificate.get("files") == _hashes(into)


@contextmanager
def _building(into: Path) -> Iterator[Path]:
    """Give a directory to fill beside the target; it takes the target's name only when nothing went wrong.

    What a killed process left there is cleared away. Raises BusyError while another process exports to `into`.
    """
    place = into.with_name(f".{into.name}.building")
    with OutputLock(place):
        try:
            with whole_or_gone(place / "model", into, "the export", "the finished model"):
                yield place / "model"
                (place / "model").replace(into)
        finally:
            shutil.rmtree(place, ignore_errors=True)

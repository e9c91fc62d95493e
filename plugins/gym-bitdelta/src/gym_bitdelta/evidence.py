"""What is known of a delta: measured on samples held out, and read from its file."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.nn import functional
from transformers import PreTrainedModel

from gym_bitdelta.delta.header import Dense, LowRank, data_bytes
from gym_bitdelta.delta.records import Record
from gym_bitdelta.safety import threshold as safety
from gym_core import Artifact
from gym_quant.post_training.calibration import Rows
from gym_torch.checkpoints import load_delta
from gym_torch.checkpoints.tokenizer_files import BESIDE
from gym_torch.model_files import weight_files


@torch.no_grad()
def held_out(
    base: PreTrainedModel, student: PreTrainedModel, tuned: PreTrainedModel, records: Mapping[str, Record], rows: Rows
) -> dict[str, float]:
    """Return losses (nats per token that training predicts) of the base, the fine-tune, and base and delta; and the KL
    divergence of the last from the fine-tune. `student`, to which the delta is added, may be `base`.

    `recovered` is the share of the gain of the fine-tune that the delta keeps, where there was a gain.
    """
    plain = [_log_probs(base, rows, part) for part in rows.batches()]
    load_delta.add(student, ((name, record.values()) for name, record in records.items() if record.parts))
    sums, count = {"base": 0.0, "tuned": 0.0, "delta": 0.0, "kl": 0.0}, 0
    for part, before in zip(rows.batches(), plain, strict=True):
        wanted, found = _log_probs(tuned, rows, part), _log_probs(student, rows, part)
        labels = rows.tokens[part][:, 1:][rows.predicts[part][:, :-1]][:, None]
        count += len(labels)
        sums["base"] -= float(before.gather(1, labels).sum(dtype=torch.float64))
        sums["tuned"] -= float(wanted.gather(1, labels).sum(dtype=torch.float64))
        sums["delta"] -= float(found.gather(1, labels).sum(dtype=torch.float64))
        sums["kl"] += float(functional.kl_div(found, wanted, reduction="sum", log_target=True))
    told = {name: total / max(1, count) for name, total in sums.items()}
    gain = told["base"] - told["tuned"]
    return told | ({"recovered": (told["base"] - told["delta"]) / gain} if gain > 0 else {})


def sizes(artifact: Artifact, base: Path, made: Path, records: Mapping[str, Record]) -> dict[str, Any]:
    """Return the size of the file, of what it stands for, and how many bits a coded weight takes."""
    coded = {name: record for name, record in records.items() if isinstance(record.entry, Dense | LowRank)}
    numbers = sum(prod(record.entry.shape) for record in coded.values())
    bits = 8 * data_bytes({name: record.entry for name, record in coded.items()}) / max(1, numbers)
    whole = sum(file.stat().st_size for file in weight_files(base if artifact.kind == "adapter" else artifact.path))
    size = made.stat().st_size
    told: dict[str, Any] = {
        "file_bytes": size,
        "fine_tune_bytes": whole,
        "ratio": whole / size,
        "bits_per_weight": bits,
    }
    if artifact.kind == "adapter":
        count = 0
        for each in weight_files(artifact.path):
            with safe_open(each, "pt") as weights:
                count += sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
        told |= {"adapter_bf16_bytes": 2 * count, "adapter_ratio": 2 * count / size}
    return told


def card(method: str, told: Mapping[str, Any]) -> str:
    """Return the model card of a delta, with what was measured."""
    rows = [
        ("file", f"{told['file_bytes'] / 1e6:.3f} MB"),
        ("fine-tune as a checkpoint", f"{told['fine_tune_bytes'] / 1e6:.3f} MB ({told['ratio']:.1f} times as much)"),
        ("bits per coded weight", f"{told['bits_per_weight']:.3f}"),
    ]
    if "adapter_ratio" in told:
        rows.append(
            ("adapter in bf16", f"{told['adapter_bf16_bytes'] / 1e6:.3f} MB ({told['adapter_ratio']:.1f} times)")
        )
    if (found := told["holdout"]) is not None:
        rows += [(f"loss of {what}", f"{found[key]:.4f}") for what, key in LOSSES]
        rows.append(("KL divergence from the fine-tune, nats per token", f"{found['kl']:.4g}"))
        if "recovered" in found:
            rows.append(("share of the gain that is kept", f"{found['recovered']:.1%}"))
        rows.append(("measured on", MEASURED_ON[told["samples"]["holdout_of"]]))
    rows.append(("safety", safety.told(told["safety"])))
    rows += [("safety, warning", each) for each in safety.warnings(told["safety"])]
    measured = "" if told["holdout"] is not None else "\nNo data were there to measure on.\n"
    return CARD.format(
        method=method, rows="\n".join(f"| {name} | {value} |" for name, value in rows), measured=measured
    )


def copy_new_tokenizer(tuned: Path, base: Path, into: Path) -> None:
    """Copy what the fine-tune has of a tokenizer in other bytes than the base."""
    for pattern in BESIDE:
        for file in sorted(tuned.glob(pattern)):
            before = base / file.name
            if not before.is_file() or before.read_bytes() != file.read_bytes():
                (into / file.name).write_bytes(file.read_bytes())


def _log_probs(model: PreTrainedModel, rows: Rows, part: slice) -> torch.Tensor:
    """Return log-probabilities `[n, vocabulary]` where there is a token to predict."""
    logits = model(rows.tokens[part], use_cache=False).logits
    found: torch.Tensor = logits[rows.predicts[part]].float().log_softmax(-1)
    return found


LOSSES = (("the base", "base"), ("the fine-tune", "tuned"), ("base and delta", "delta"))
#: What losses are of, by the part of the data that the samples held out are of.
MEASURED_ON = {
    "train": "samples of the training data; calibration and distillation did not see them",
    "validation": "samples of the validation split",
}
CARD = """\
## Delta made with {method}

| | |
|---|---|
{rows}
{measured}
`delta.json` has the squared error of every weight. The delta belongs to one base, to the bit: its fingerprint is in the file.
"""

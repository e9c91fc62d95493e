"""What is known of a quantized model: measured on samples held out, and read from its files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gym_core import Artifact
from gym_quant.config.stored_layout import Scheme
from gym_quant.post_training.walk import Walk

PARTS = ("", "_packed", "_scale", "_shape", "_zero_point")
EACH = 8  #: layers that the card names, the worst first


def compare(before: Walk, after: Walk) -> dict[str, float]:
    """Return perplexity before and after, and the mean KL divergence (nats per token) of what is after from what was before.

    Of the same samples, behind the last layer; over the tokens that training predicts.
    """
    count, agreed = 0, 0
    old = new = divergence = 0.0
    for (tokens, was), (_, now) in zip(before.logits(), after.logits(), strict=True):
        was, now = was.log_softmax(-1), now.log_softmax(-1)
        count += len(tokens)
        old -= float(was.gather(1, tokens[:, None]).sum(dtype=torch.float64))
        new -= float(now.gather(1, tokens[:, None]).sum(dtype=torch.float64))
        divergence += float((was.exp() * (was - now)).sum(dtype=torch.float64))
        agreed += int((was.argmax(1) == now.argmax(1)).sum())
    return {
        "perplexity_before": math.exp(min(old / count, 700)),
        "perplexity_after": math.exp(min(new / count, 700)),
        "kl": divergence / count,
        "same_first_token": agreed / count,
    }


def layer_error(weight: Tensor, found: Tensor, moments: Tensor | None) -> dict[str, float]:
    """Return the relative error of a weight `[out, in]`, and of its outputs where the mean of x x^T `[in, in]` is known."""
    apart = found.float() - weight
    told = {"weight_error": _ratio(apart.norm(), weight.norm())}
    if moments is not None:
        told["output_error"] = _ratio(
            ((apart @ moments) * apart).sum().clamp(min=0).sqrt(),
            ((weight @ moments) * weight).sum().clamp(min=0).sqrt(),
        )
    return told


def _ratio(part: Tensor, whole: Tensor) -> float:
    return float(part / whole) if float(whole) else float(part)


def measured_bits(
    stored: Mapping[str, int], schemes: Mapping[str, Scheme], numbers: Mapping[str, int]
) -> dict[str, float]:
    """Return the bits that a weight takes: of the layers that are quantized, and of the whole model.

    `stored` are the bytes of each tensor of the files by name, `numbers` how many numbers each weight of the model has.
    """
    quantized = sum(stored.get(f"{name}{part}", 0) for name in schemes for part in PARTS)
    return {
        "bits_per_weight": 8 * quantized / sum(numbers[name] for name in schemes),
        "bits_per_weight_of_all": 8 * sum(stored.values()) / sum(numbers.values()),
    }


def card(artifact: Artifact, told: Mapping[str, Any]) -> str:
    """Return the model card of what was quantized, with what was measured."""
    rows = [
        ("bits per weight, quantized layers", f"{told['bits_per_weight']:.3f}"),
        ("bits per weight, whole model", f"{told['bits_per_weight_of_all']:.3f}"),
        ("weight files", f"{told['file_bytes'] / 1e6:.2f} MB (before: {told['file_bytes_before'] / 1e6:.2f} MB)"),
    ]
    if (found := told["holdout"]) is not None:
        rows += [
            ("perplexity before", f"{found['perplexity_before']:.4f}"),
            ("perplexity after", f"{found['perplexity_after']:.4f}"),
            ("KL divergence, nats per token", f"{found['kl']:.4g}"),
            ("most likely token is the same", f"{found['same_first_token']:.1%}"),
        ]
    rows += [("seconds", f"{told['seconds']:.1f}"), ("peak memory", f"{told['peak_bytes'] / 1e6:.0f} MB")]
    by_outputs = all("output_error" in layer for layer in told["layers"].values())
    key = "output_error" if by_outputs else "weight_error"
    worst = sorted(told["layers"], key=lambda name: -told["layers"][name][key])[:EACH]
    return CARD.format(
        method=told["method"],
        rows="\n".join(f"| {name} | {value} |" for name, value in rows),
        said=_said(told),
        what="outputs on the calibration samples" if by_outputs else "weights",
        layers="\n".join(
            f"| {name} | {told['layers'][name]['scheme']['bits']} | {told['layers'][name][key]:.4g} |" for name in worst
        ),
    )


def _said(told: Mapping[str, Any]) -> str:
    samples = told["samples"]
    if samples is None:
        return "No data were there to measure on."
    where = (
        "of the validation split"
        if samples["holdout_of"] == "validation"
        else "that training saw and calibration did not"
    )
    return (
        f"Measured on {len(samples['holdout'])} samples ({samples['holdout_tokens']} tokens) {where}; "
        f"data fingerprint `{samples['data']}`."
    )


def beside(base: Path, text: str) -> str:
    """Return the model card of what a model was made from, with a section behind it; that section alone where there is none."""
    file = base / "README.md"
    return f"{file.read_text(encoding='utf-8').rstrip()}\n\n{text}" if file.is_file() else text


CARD = """\
## Quantized with {method}

| | |
|---|---|
{rows}

{said} `quantization.json` has the figures of every layer. The largest relative errors of the {what}:

| layer | bits | error |
|---|---|---|
{layers}
"""

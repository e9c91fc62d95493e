"""The exporters as a recipe sees them: options, defaults, documentation. Nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gym_core import Exporter


class SafetensorsExporter(Exporter):
    """A plain Hugging Face model directory: adapters and deltas merged in, weights in safetensors shards."""

    target: ClassVar[str] = "gym_export.formats.safetensors:Safetensors"
    artifacts: ClassVar[tuple[str, ...]] = ("model", "adapter", "delta")
    tasks: ClassVar[tuple[str, ...]] = ("causal-lm", "sequence-classification", "token-classification")

    shard_gigabytes: Annotated[float, Field(gt=0)] = 5.0
    """Largest size of one file of weights."""
    dtype: Literal["keep", "fp32", "bf16", "fp16"] = "keep"
    """Number format of the weights; `keep` is that of the base model."""

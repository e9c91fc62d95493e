"""rsLoRA (arXiv:2312.03732): LoRA scaled by alpha / sqrt(rank)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gym_adapters.config.rslora import RsLoRA
from gym_adapters.tuners.lora import LoraAdapter


class RsLoraAdapter(LoraAdapter[RsLoRA]):
    """rsLoRA (arXiv:2312.03732): scaled by alpha / sqrt(rank), so that the gradient keeps its size as the rank grows."""

    more: ClassVar[Mapping[str, Any]] = {"use_rslora": True}

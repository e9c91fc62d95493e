"""LoRA (arXiv:2106.09685): `W + scaling B A`, where B is zero at first; and what differs from it by an option of peft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gym_adapters.config.lora import DoRA, LoRA
from gym_adapters.low_rank import LowRank
from gym_adapters.stacked import Stacked


class Lora(Stacked[LoRA]):
    """Plain LoRA, scaled by alpha / rank."""


class RsLora(Lora):
    """rsLoRA (arXiv:2312.03732): scaled by alpha / sqrt(rank), so that the gradient keeps its size as the rank grows."""

    more: ClassVar[Mapping[str, Any]] = {"use_rslora": True}


class Dora(LowRank[DoRA]):
    """DoRA (arXiv:2402.09353): `m (W + scaling B A) / norm`, with a trained length m for each output.

    The norm is that of the rows of `W + scaling B A`; no gradient goes through it (section 4.3).
    """

    more: ClassVar[Mapping[str, Any]] = {"use_dora": True}

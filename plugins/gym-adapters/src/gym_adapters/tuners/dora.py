"""DoRA (arXiv:2402.09353): LoRA for the direction of each row of a weight, and a trained length of the row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gym_adapters.config.dora import DoRA
from gym_adapters.lora_base import LowRankAdapter


class DoraAdapter(LowRankAdapter[DoRA]):
    """DoRA (arXiv:2402.09353): `m (W + scaling B A) / norm`, with a trained length m for each output.

    The norm is that of the rows of `W + scaling B A`; no gradient goes through it (section 4.3).
    """

    more: ClassVar[Mapping[str, Any]] = {"use_dora": True}

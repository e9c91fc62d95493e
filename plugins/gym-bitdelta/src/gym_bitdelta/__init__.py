"""gym-bitdelta: what a fine-tune changed, in a bit or two a weight. These are the options; torch comes when one is built."""

from __future__ import annotations

from gym_bitdelta.config.bitdelta import BitDelta
from gym_bitdelta.config.deltaquant import DeltaQuant, QuantMethod

__version__ = "0.1.0"
__all__ = ["BitDelta", "DeltaQuant", "QuantMethod"]

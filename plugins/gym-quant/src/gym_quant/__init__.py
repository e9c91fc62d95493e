"""gym-quant: weights in fewer bits. These are the options; torch is imported when one is built."""

from __future__ import annotations

from gym_quant.config.rtn import RTN

__version__ = "0.1.0"
__all__ = ["RTN"]

"""gym-bitdelta: what a fine-tune changed, in a bit or two a weight. These are the options; torch comes when one is built."""

from __future__ import annotations

__version__ = "0.1.0"

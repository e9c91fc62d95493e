"""gym-serve: what was trained, in use. Names are imported on first use; torch comes when an engine is built."""

from __future__ import annotations

from gym_core.lazy import lazily

__version__ = "0.1.0"

_HOMES = {
    "gym_serve.contract": "Engine Grammar Limits ModelSource Piece Request Sampling ServedModel TokenLogprob Usage",
    "gym_serve.errors": "BadRequest Full Gone RequestError TooLong Unknown",
    "gym_serve.kinds": "Server",
}
__all__, __getattr__, __dir__ = lazily(__name__, _HOMES)

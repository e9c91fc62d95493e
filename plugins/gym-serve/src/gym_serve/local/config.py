"""Options of the engine `local`. No torch is imported here."""

from __future__ import annotations

from typing import ClassVar, Literal

from gym_serve.kinds import Server


class Local(Server):
    """Serves models from this process with continuous batching: full models, adapters, and compressed deltas of many tenants."""

    target: ClassVar[str] = "gym_serve.local.engine:LocalEngine"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of weights; `auto` is that of their files."""
    threads: int | None = None
    """Threads of a CPU that compute; by default torch decides."""

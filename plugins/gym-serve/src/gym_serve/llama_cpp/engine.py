"""The engine `llama_cpp`: GGUF files over batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gym_serve.batching.engine import BatchEngine
from gym_serve.contract import Limits, ModelSource
from gym_serve.llama_cpp.config import LlamaCpp
from gym_serve.llama_cpp.model import LlamaModel


class LlamaCppEngine(BatchEngine):
    """Serves GGUF files in this process."""

    def __init__(self, config: LlamaCpp, *, artifacts: Sequence[ModelSource], limits: Limits) -> None:
        """Load what is to be served. Raises GymError where something of it cannot be."""
        limits = replace(limits, max_batch=min(limits.max_batch, config.slots))
        models = [LlamaModel(source, limits, config) for source in artifacts]
        super().__init__(models, limits, frozenset({"prefix_cache"} if limits.prefix_cache_bytes else ()))

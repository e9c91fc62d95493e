"""The engine `local`: models of this process over batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch

from gym_serve.batching.engine import BatchEngine
from gym_serve.contract import Limits, ModelSource
from gym_serve.local.config import Local
from gym_serve.local.model import LocalModel
from gym_serve.local.opening import open_source
from gym_torch.generation.prefix_cache import PrefixCache

SUPPORTS = frozenset({"tenants", "score", "embed", "echo", "prefix_cache"})  #: beside what batches do for any model


class LocalEngine(BatchEngine):
    """Serves models of this process."""

    def __init__(self, config: Local, *, artifacts: Sequence[ModelSource], limits: Limits) -> None:
        """Load what is to be served. Raises GymError where something of it cannot be."""
        if config.threads:
            torch.set_num_threads(config.threads)
        prefixes = PrefixCache(limits.prefix_cache_bytes)
        kept = prefixes if limits.prefix_cache_bytes else None
        opened = [LocalModel(open_source(each, limits, config.dtype), limits, kept) for each in artifacts]
        taking = {"adapters"} if any(model.takes_adapters for model in opened) else frozenset[str]()

        def figures() -> dict[str, float]:
            return {"prefix_cache_bytes": prefixes.bytes, "adapter_bytes": sum(each.adapter_bytes for each in opened)}

        super().__init__(opened, limits, SUPPORTS | taking, figures)
        self.served = {model.source.name: model.served for model in opened}
        self._local = {model.source.name: model for model in opened}
        self._adding = asyncio.Lock()  # one at a time, so that threads are left for requests

    async def add_adapter(self, model: str, name: str, path: str, in_place: bool = False) -> None:
        """Read an adapter that answers from then on."""
        async with self._adding:
            await self._aside.run(lambda: self._local[self.model(model).source.name].add_adapter(name, path, in_place))

    async def remove_adapter(self, model: str, name: str) -> None:
        """Forget an adapter; replies under way are finished with it."""
        async with self._adding:
            await self._aside.run(lambda: self._local[self.model(model).source.name].remove_adapter(name))

"""Where rows are decoded: a lane for each model, and one for each variant whose rows share no pass with those of others."""

from __future__ import annotations

import threading
from collections.abc import Hashable, MutableMapping
from weakref import WeakKeyDictionary, WeakValueDictionary

from transformers import PreTrainedModel

from gym_torch.generation.cache_support import cache_support_of
from gym_torch.generation.generator import decode_batch
from gym_torch.generation.padded_rows import Around
from gym_torch.generation.prefix_cache import PrefixCache
from gym_torch.generation.scheduler import Lane, model_lane


class Lanes:
    """The lanes of all models of an engine. Any thread may ask."""

    def __init__(self, around: Around, prefixes: PrefixCache | None = None) -> None:
        """Begin without lanes; see `gym_torch.generation.decoding.Decoding` for the arguments."""
        self._around, self._prefixes = around, prefixes
        self._shared: WeakKeyDictionary[object, Lane] = WeakKeyDictionary()
        #: Gone, memory included, with their last job.
        self._own: WeakValueDictionary[Hashable, Lane] = WeakValueDictionary()
        self._turn = threading.Lock()  # requests are prepared side by side, and a model has one lane

    def of(self, home: object, model: PreTrainedModel, longest: int, alone: Hashable = None) -> Lane:
        """Return the lane of a model.

        Args:
            home: holds the model in memory: its lane goes with this.
            model: what computes.
            longest: most tokens of a prompt with its reply.
            alone: names a variant whose rows are computed apart from those of others; None shares the batches of the model.

        """
        lanes: MutableMapping[Hashable, Lane] = self._shared if alone is None else self._own
        place = home if alone is None else alone
        with self._turn:
            found = lanes.get(place)
            if found is None:
                way = cache_support_of(model, longest, decode_batch)
                lanes[place] = found = model_lane(model, way, longest, self._around, self._prefixes)
            return found

"""Who answers for a tenant: a compressed delta of a store beside the base, a low-rank adapter beside it, or a model of its own.

Rows of all tenants share the batches of one base. What a request has stays in memory until it ends, whatever is replaced.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from transformers import PreTrainedModel

from gym_bitdelta.runtime.row_tenants import computing
from gym_bitdelta.runtime.tenant import Tenant
from gym_bitdelta.store import VariantStore
from gym_data.tokenizer import Tokenizer
from gym_personalization.opened_variants import OpenedVariants
from gym_serve.batching.grammar import Grammars, grammars_of
from gym_serve.contract import Limits
from gym_serve.errors import Unknown
from gym_serve.local.opening import Served, context_of, vocabulary_of


@dataclass(frozen=True)
class Answering:
    """What answers for a tenant."""

    home: object  #: holds the model in memory: what is kept of it goes with this
    model: PreTrainedModel
    tokenizer: Tokenizer
    stops: frozenset[int]
    key: Hashable  #: names it, version included, among the rows of the model
    context: int  #: tokens of prompt and reply
    vocabulary: int  #: number of logits
    alone: Hashable = None  #: names it where no other rows may be in its batches
    pooling: str | None = None  #: of an embedding model

    @property
    def grammars(self) -> Grammars:
        """What compiles grammars for its vocabulary."""
        return grammars_of(self.tokenizer, self.vocabulary, self.stops)


class Tenants(Protocol):
    """The tenants of one model."""

    def names(self) -> Sequence[str]:
        """Return who there is, sorted."""
        ...

    def tokenizer(self, name: str) -> Tokenizer:
        """Return the tokenizer of a tenant, with its template. Raises Unknown, GymError."""
        ...

    def open(self, name: str | None, stack: ExitStack) -> Answering:
        """Return what answers for a tenant, or for nobody in particular, until `stack` is closed. Raises Unknown, GymError."""
        ...

    def around(self, keys: list[Hashable]) -> AbstractContextManager[None]:
        """Return the context of a pass whose rows have these keys."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class StoredTenants:
    """The users of a variant store."""

    def __init__(self, served: Served, limits: Limits) -> None:
        """Lay the deltas of a store beside a model. Raises GymError where there is no store."""
        assert served.source.tenants is not None
        self._served, self._limits = served, limits
        self._store = VariantStore(served.source.tenants, create=False)
        self._variants = OpenedVariants(
            self._store, served.model.dtype, limits.tenant_cache_bytes, limits.tenant_bytes, None, served.model
        )
        self._held: dict[Hashable, Tenant] = {}
        self._uses: Counter[Hashable] = Counter()
        self._turn = threading.Lock()

    def names(self) -> Sequence[str]:
        """Return the users."""
        return self._store.index.users()

    def tokenizer(self, name: str) -> Tokenizer:
        """Return that of the newest version of a user."""
        if name not in self.names():
            raise unknown(self._served, name)
        return self._variants.tokenizer(name)

    def open(self, name: str | None, stack: ExitStack) -> Answering:
        """Return what answers for the newest version of a user."""
        if name is None:
            return sharing(self._served)
        if name not in self.names():
            raise unknown(self._served, name)
        ready = self._variants.ready(name, stack)
        model, tokenizer, stops, key = ready.model, ready.tokenizer, ready.stops, ready.name
        if ready.tenant is None:
            context = context_of(model, self._limits)
            return Answering(ready.home, model, tokenizer, stops, key, context, vocabulary_of(model))
        with self._turn:
            self._held[key] = ready.tenant
            self._uses[key] += 1
        stack.callback(self._drop, key)
        vocabulary = min(ready.tenant.outputs.values(), default=self._served.vocabulary)
        return replace(
            sharing(self._served, key), tokenizer=tokenizer, stops=stops, vocabulary=vocabulary, alone=ready.alone
        )

    def around(self, keys: list[Hashable]) -> AbstractContextManager[None]:
        """Return the context of a pass whose rows are of these versions."""
        held = [self._held.get(key) for key in keys]
        return computing(self._variants.shared.mixture(held) if any(each is not None for each in held) else None)

    def close(self) -> None:
        """Close the store."""
        self._variants.close()
        self._store.close()

    def _drop(self, key: Hashable) -> None:
        with self._turn:
            self._uses[key] -= 1
            if not self._uses[key]:
                del self._uses[key], self._held[key]


class NoTenants:
    """A model that everybody shares."""

    def __init__(self, served: Served) -> None:
        """Take the model."""
        self._served = served

    def names(self) -> Sequence[str]:
        """Return nobody."""
        return ()

    def tokenizer(self, name: str) -> Tokenizer:
        """Raise Unknown."""
        raise unknown(self._served, name)

    def open(self, name: str | None, stack: ExitStack) -> Answering:
        """Return the model."""
        if name is not None:
            raise unknown(self._served, name)
        return sharing(self._served)

    @contextmanager
    def around(self, keys: list[Hashable]) -> Iterator[None]:
        """Change nothing."""
        yield

    def close(self) -> None:
        """Let go of nothing."""


def unknown(served: Served, name: str) -> Unknown:
    """Return the error for a tenant that is not there."""
    return Unknown(f"there is no model `{served.source.name}@{name}`")


def sharing(served: Served, key: Hashable = None) -> Answering:
    """Return what answers with a model that many share."""
    return Answering(
        served,
        served.model,
        served.tokenizer,
        served.stops,
        key,
        served.context,
        served.vocabulary,
        pooling=served.pooling,
    )

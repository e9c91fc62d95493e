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
from gym_core import Artifact, GymError
from gym_data.tokenizer import Tokenizer
from gym_personalization.opened_variants import Alone, OpenedVariants
from gym_serve.batching.grammar import Grammars, grammars_of
from gym_serve.contract import Limits
from gym_serve.errors import Unknown
from gym_serve.local.adapter_batch import AdapterBatch
from gym_serve.local.opening import (
    Served,
    artifact_in,
    context_of,
    ends_of,
    own_tokenizer,
    vocabulary_of,
)


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
            raise _unknown(self._served, name)
        return self._variants.tokenizer(name)

    def open(self, name: str | None, stack: ExitStack) -> Answering:
        """Return what answers for the newest version of a user."""
        if name is None:
            return _sharing(self._served)
        if name not in self.names():
            raise _unknown(self._served, name)
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
            _sharing(self._served, key), tokenizer=tokenizer, stops=stops, vocabulary=vocabulary, alone=ready.alone
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


class AdapterTenants:
    """Adapters by name: low-rank ones beside one base, each of the others in a model of its own."""

    def __init__(self, served: Served, limits: Limits) -> None:
        """Read the adapters. Raises GymError where one of them is of another base."""
        self._served, self._limits = served, limits
        self._batch = AdapterBatch(served.model)
        self._alone: dict[str, Alone] = {}
        self._words: dict[str, tuple[Tokenizer, frozenset[int]]] = {}
        for name, path in served.source.adapters.items():
            artifact = artifact_in(path, served.artifact.path)
            model = self._batch.add(name, artifact, served.artifact)
            if model is not None:
                model = model.requires_grad_(False).eval().to(served.model.device)  # type: ignore[arg-type]
                self._alone[name] = Alone(model, ExitStack())
            self._words[name] = _words_of(served, name, artifact)
        if self._batch.bytes > limits.tenant_bytes:
            raise GymError(
                f"the adapters take {self._batch.bytes / 1e6:.0f} MB, and may take {limits.tenant_bytes / 1e6:.0f}",
                key="limits.tenant_bytes",
                fix="serve fewer of them, or set it higher",
            )

    def names(self) -> Sequence[str]:
        """Return the names of the adapters."""
        return sorted(self._served.source.adapters)

    def tokenizer(self, name: str) -> Tokenizer:
        """Return that of an adapter."""
        if name not in self._words:
            raise _unknown(self._served, name)
        return self._words[name][0]

    def open(self, name: str | None, stack: ExitStack) -> Answering:
        """Return the base with an adapter."""
        if name is not None and name not in self._served.source.adapters:
            raise _unknown(self._served, name)
        sharing = _sharing(self._served, name)
        if name is None:
            return sharing
        tokenizer, stops = self._words[name]
        if (home := self._alone.get(name)) is not None:
            context = context_of(home.model, self._limits)
            return Answering(home, home.model, tokenizer, stops, name, context, vocabulary_of(home.model))
        return replace(sharing, tokenizer=tokenizer, stops=stops)

    def around(self, keys: list[Hashable]) -> AbstractContextManager[None]:
        """Return the context of a pass whose rows have these adapters; in a model of its own nothing lies beside it."""
        return self._batch.computing([None if key in self._alone else key for key in keys])

    def close(self) -> None:
        """Give the model back as it was."""
        self._batch.close()
        self._alone.clear()


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
        raise _unknown(self._served, name)

    def open(self, name: str | None, stack: ExitStack) -> Answering:
        """Return the model."""
        if name is not None:
            raise _unknown(self._served, name)
        return _sharing(self._served)

    @contextmanager
    def around(self, keys: list[Hashable]) -> Iterator[None]:
        """Change nothing."""
        yield

    def close(self) -> None:
        """Let go of nothing."""


def _words_of(served: Served, name: str, artifact: Artifact) -> tuple[Tokenizer, frozenset[int]]:
    """Return the tokenizer of an adapter, with the template that it was trained with, and the tokens that end its replies.

    Raises GymError where another template is there.
    """
    found = own_tokenizer(artifact, served.tokenizer, served.source.template, name)
    return found, ends_of(served.model, found)


def _unknown(served: Served, name: str) -> Unknown:
    return Unknown(f"there is no model `{served.source.name}@{name}`")


def _sharing(served: Served, key: Hashable = None) -> Answering:
    """Return what answers with a model that many share."""
    return Answering(served, served.model, served.tokenizer, served.stops, key, served.context, served.vocabulary)


def tenants_of(served: Served, limits: Limits) -> Tenants:
    """Return the tenants of a source. Raises GymError where it names both a store and adapters, or adapters of an adapter."""
    if served.source.tenants and served.source.adapters:
        raise GymError("a model has tenants from a store or adapters by name, not both", key=served.source.name)
    if served.source.adapters and served.artifact.kind == "adapter":
        raise GymError(
            "an adapter has no adapters beside it: it is one of its base",
            where=served.source.path,
            key="adapters",
            fix=f"serve {served.artifact.base}, with this one as another of `adapters.NAME=PATH`",
        )
    if served.source.tenants:
        return StoredTenants(served, limits)
    return AdapterTenants(served, limits) if served.source.adapters else NoTenants(served)

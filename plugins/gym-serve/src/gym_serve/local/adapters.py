"""Adapters by name beside one base, which may come and go while it answers: those that were read last answer new requests."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from gym_core import Artifact, GymError
from gym_core.files import expanded
from gym_data.tokenizer import Tokenizer
from gym_personalization.opened_variants import Alone
from gym_serve.contract import Limits
from gym_serve.errors import BadRequest
from gym_serve.local.adapter_batch import AdapterBatch
from gym_serve.local.opening import Served, artifact_in, context_of, ends_of, own_tokenizer, vocabulary_of
from gym_serve.local.tenants import Answering, sharing, unknown
from gym_torch.checkpoints.pooling_files import pooling_of


@dataclass(frozen=True)
class Version:
    """Names what was read under a name, among all that ever was: rows of one that was replaced go on with it."""

    name: str
    number: int
    alone: bool = False  #: whether it is a model of its own, and nothing lies beside it


@dataclass(frozen=True)
class Beside:
    """An adapter in memory."""

    version: Version
    tokenizer: Tokenizer
    stops: frozenset[int]
    home: Alone | None  #: the model, where it has one of its own
    pooling: str | None  #: where it makes an embedding model


class AdapterTenants:
    """Adapters by name: low-rank ones beside one base, each of the others in a model of its own."""

    def __init__(self, served: Served, limits: Limits) -> None:
        """Read the adapters. Raises GymError where one of them is of another base."""
        self._served, self._limits = served, limits
        self._batch = AdapterBatch(served.model)
        self._there: dict[str, Beside] = {}
        self._uses: Counter[Version] = Counter()
        self._numbers = count()
        self._turn = threading.Lock()
        for name, path in served.source.adapters.items():
            self._there[name] = self._read(name, artifact_in(path, served.artifact.path))
        self._check_room()

    @property
    def bytes(self) -> int:
        """Memory of the low-rank updates, of those too that replies under way go on with."""
        return self._batch.bytes

    def names(self) -> Sequence[str]:
        """Return the names of the adapters."""
        return sorted(self._there)

    def tokenizer(self, name: str) -> Tokenizer:
        """Return that of an adapter."""
        return self._named(name).tokenizer

    def open(self, name: str | None, stack: ExitStack) -> Answering:
        """Return the base with an adapter."""
        if name is None:
            return sharing(self._served)
        with self._turn:
            found = self._named(name)
            self._uses[found.version] += 1
        stack.callback(self._drop, found.version)
        key, tokenizer, stops = found.version, found.tokenizer, found.stops
        pooling = found.pooling or self._served.pooling
        if (home := found.home) is not None:
            context = context_of(home.model, self._limits)
            return Answering(
                home, home.model, tokenizer, stops, key, context, vocabulary_of(home.model), pooling=pooling
            )
        return replace(sharing(self._served, key), tokenizer=tokenizer, stops=stops, pooling=pooling)

    def around(self, keys: list[Hashable]) -> AbstractContextManager[None]:
        """Return the context of a pass whose rows have these adapters."""
        return self._batch.computing([None if isinstance(key, Version) and key.alone else key for key in keys])

    def add(self, name: str, path: str, in_place: bool) -> None:
        """Read an adapter under the folders of the limits, which answers from then on. One thread at a time adds.

        Raises BadRequest where the name is taken and not given up `in_place`, and where it is no low-rank adapter under those
        folders; GymError where it is of another base, or there is no room for it.
        """
        if name in self._there and not in_place:
            raise BadRequest(
                f"there is an adapter `{self._served.source.name}@{name}` already",
                key="lora_name",
                fix="send `load_inplace: true` to replace it",
            )
        artifact = artifact_within(path, self._limits.adapter_folders, self._served.artifact.path)
        found = self._read(name, artifact)
        try:
            if found.home is not None:
                why = "it does more than add low-rank updates, and takes a model of its own"
                raise BadRequest(
                    why, key="lora_path", fix="name it when the server is started, as `adapters.NAME=PATH`"
                )
            self._check_room()
        except GymError:
            self._batch.remove(found.version)
            raise
        with self._turn:
            before, self._there[name] = self._there.get(name), found
            self._let_go(before)

    def remove(self, name: str) -> None:
        """Forget an adapter; replies under way are finished with it. Raises Unknown."""
        with self._turn:
            found = self._named(name)
            del self._there[name]
            self._let_go(found)

    def close(self) -> None:
        """Give the model back as it was."""
        self._batch.close()
        self._there.clear()

    def _read(self, name: str, artifact: Artifact) -> Beside:
        number = next(self._numbers)
        tokenizer = own_tokenizer(artifact, self._served.tokenizer, self._served.source.template, name)
        stops, pooling = ends_of(self._served.model, tokenizer), pooling_of(artifact.path)
        model = self._batch.add(Version(name, number), name, artifact, self._served.artifact)
        if model is None:
            return Beside(Version(name, number), tokenizer, stops, None, pooling)
        model = model.requires_grad_(False).eval().to(self._served.model.device)  # type: ignore[arg-type]
        return Beside(Version(name, number, alone=True), tokenizer, stops, Alone(model, ExitStack()), pooling)

    def _check_room(self) -> None:
        if self._batch.bytes > self._limits.tenant_bytes:
            raise GymError(
                f"the adapters take {self._batch.bytes / 1e6:.0f} MB, and may take {self._limits.tenant_bytes / 1e6:.0f}",
                key="limits.tenant_bytes",
                fix="serve fewer of them, or set it higher",
            )

    def _named(self, name: str) -> Beside:
        found = self._there.get(name)
        if found is None:
            raise unknown(self._served, name)
        return found

    def _let_go(self, version: Beside | None) -> None:
        """Free what nobody uses; called with the turn held."""
        if version is not None and not self._uses[version.version]:
            self._batch.remove(version.version)

    def _drop(self, version: Version) -> None:
        with self._turn:
            self._uses[version] -= 1
            if self._uses[version]:
                return
            del self._uses[version]
            now = self._there.get(version.name)
            if now is None or now.version != version:
                self._batch.remove(version)


def artifact_within(path: str, folders: Sequence[Path], base: Path) -> Artifact:
    """Return the adapter that a path means, which is absolute or from one of the folders.

    Raises BadRequest where it, or a file of it, lies under none of them, links followed; and what `artifact_in` raises.
    """
    roots = [expanded(folder).resolve() for folder in folders]

    def inside(found: Path) -> bool:
        return any(found.resolve().is_relative_to(root) for root in roots)

    wanted = [found for root in roots if "\0" not in path and inside(found := root / path) and found.is_dir()]
    artifact = artifact_in(str(wanted[0].resolve()), base) if wanted else None
    if artifact is None or not inside(artifact.path) or not all(map(inside, artifact.path.rglob("*"))):
        why = "there is no such adapter under the folders from which this server loads some"
        raise BadRequest(why, key="lora_path")
    return artifact

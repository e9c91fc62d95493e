"""A model of this process with its tenants, as the engine over batches asks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from gym_bitdelta.runtime.tenant_cache import NoRoomError
from gym_core import GymError
from gym_personalization.lanes import Lanes
from gym_serve.batching.aside import CrowdedError
from gym_serve.contract import Limits, ModelSource, ScoreInput, ServedModel, Text
from gym_serve.errors import BadRequest
from gym_serve.local import pooling
from gym_serve.local.adapters import AdapterTenants
from gym_serve.local.opening import Served
from gym_serve.local.tenants import Answering, NoTenants, StoredTenants, Tenants
from gym_torch.generation.prefix_cache import PrefixCache
from gym_torch.generation.sampling import Scores
from gym_torch.generation.scheduler import Lane, separate_lane


class LocalModel:
    """A base, its adapters or variants, and a lane for each model that they need."""

    def __init__(self, served: Served, limits: Limits, prefixes: PrefixCache | None) -> None:
        """Lay the tenants beside it. Raises GymError where they do not belong to it."""
        self.served = served
        self._tenants = tenants_of(served, limits)
        self._lanes = Lanes(self._tenants.around, prefixes)
        self._separate = separate_lane(served.model)

    @property
    def source(self) -> ModelSource:
        """Where it is from."""
        return self.served.source

    def listed(self) -> ServedModel:
        """Return it as a front lists it."""
        return self.served.listed()

    def described(self, tenant: str | None, template_options: Mapping[str, Any]) -> ServedModel:
        """Return it with the template of a tenant, and how answers are written with some options. Raises Unknown, GymError."""
        tokenizer = None if tenant is None else self._tenants.tokenizer(tenant)
        found = self.served.listed(tokenizer, template_options)
        return found if tenant is None else replace(found, images=False)

    def tenants(self) -> Sequence[str]:
        """Return the names of its tenants."""
        return self._tenants.names()

    def open(self, tenant: str | None, stack: ExitStack) -> Answering:
        """Return what answers for a tenant. Raises CrowdedError where there is no room beside those in use."""
        try:
            return self._tenants.open(tenant, stack)
        except NoRoomError as error:
            raise CrowdedError(error.problems) from error

    @property
    def takes_adapters(self) -> bool:
        """Whether there may be some beside it."""
        return isinstance(self._tenants, AdapterTenants)

    @property
    def adapter_bytes(self) -> int:
        """Memory of adapters that are beside it by name."""
        return self._tenants.bytes if isinstance(self._tenants, AdapterTenants) else 0

    def add_adapter(self, name: str, path: str, in_place: bool) -> None:
        """Read an adapter that answers from then on. Raises BadRequest, GymError."""
        self._adapters().add(name, path, in_place)

    def remove_adapter(self, name: str) -> None:
        """Forget an adapter once replies under way are finished. Raises Unknown, BadRequest."""
        self._adapters().remove(name)

    def lane(self, answering: Answering, images: bool) -> Lane:
        """Return where rows of a model are decoded."""
        if images:
            return self._separate
        return self._lanes.of(answering.home, answering.model, answering.context, answering.alone)

    def prompt_scores(self, answering: Answering, tokens: Sequence[int], count: int) -> list[Scores]:
        """Return how likely each token of a prompt but the first was."""
        return pooling.prompt_scores(answering, self._tenants, tokens, count)

    def embeddings(self, answering: Answering, texts: Sequence[Text], dimensions: int | None) -> list[list[float]]:
        """Return a vector for each text."""
        return pooling.embeddings(answering, self._tenants, texts, dimensions)

    def scores(self, inputs: Sequence[ScoreInput]) -> list[float]:
        """Return the score of each input."""
        return pooling.scores(self.served, inputs)

    def close(self) -> None:
        """Let go of its tenants."""
        self._tenants.close()

    def _adapters(self) -> AdapterTenants:
        if not isinstance(self._tenants, AdapterTenants):
            why = "it is no whole model that writes texts, or has a store of variants, and takes no adapters"
            raise BadRequest(why, key="lora_name")
        return self._tenants


def tenants_of(served: Served, limits: Limits) -> Tenants:
    """Return the tenants of a source.

    Raises GymError where it names both a store and adapters, adapters of an adapter, or any of a model that scores.
    """
    if served.source.tenants and served.source.adapters:
        raise GymError("a model has tenants from a store or adapters by name, not both", key=served.source.name)
    if (served.source.tenants or served.source.adapters) and served.head is not None:
        raise GymError(
            "a model that scores does so alike for everybody, and has no tenants",
            where=served.source.path,
            key="tenants" if served.source.tenants else "adapters",
            fix="serve what was trained as a model with a name of its own: `gym api base NAME=RUN`",
        )
    if served.source.adapters and served.artifact.kind == "adapter":
        raise GymError(
            "an adapter has no adapters beside it: it is one of its base",
            where=served.source.path,
            key="adapters",
            fix=f"serve {served.artifact.base}, with this one as another of `adapters.NAME=PATH`",
        )
    if served.source.tenants:
        return StoredTenants(served, limits)
    may_come = limits.adapter_folders and served.artifact.kind != "adapter" and served.head is None
    return AdapterTenants(served, limits) if served.source.adapters or may_come else NoTenants(served)

"""Which tenant each row of a batch belongs to, and what a layer needs to know of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gym_bitdelta.delta.records import Record
from gym_bitdelta.runtime.products import Products
from gym_bitdelta.runtime.tenant import Tenant
from gym_core import GymError

Names = tuple[str, ...]  #: of one weight: several where it is tied


class Segments(NamedTuple):
    """The rows whose tenants have a packed matrix for a layer."""

    arenas: list[Tensor]
    records: Tensor  #: `[segments, 2, fields]`
    starts: Tensor
    rows: Tensor
    members: list[tuple[Tenant, Tensor]]  #: each tenant with its rows


class Mixture:
    """Rows of a batch with their tenants. Tables of layers are made when first asked for, and kept."""

    def __init__(self, products: Products, rows: Sequence[Tenant | None]) -> None:
        """Take the tenant of each row; None is the base."""
        self.products, self.size = products, len(rows)
        places: dict[int, list[int]] = {}
        tenants: dict[int, Tenant] = {}
        for row, tenant in enumerate(rows):
            if tenant is not None:
                places.setdefault(id(tenant), []).append(row)
                tenants[id(tenant)] = tenant
        self.members = [(tenant, torch.tensor(places[key])) for key, tenant in tenants.items()]
        self.base = torch.tensor([row for row, tenant in enumerate(rows) if tenant is None], dtype=torch.long)
        self.alone = len(places) == 1 and not len(self.base)  #: whether all rows are of one tenant
        self._segments: dict[Names, Segments | None] = {}
        self._rest: dict[Names, list[tuple[Record, Tensor]]] = {}
        self._concerned: dict[str, bool] = {}
        self._outputs: dict[Names, list[tuple[Tensor, int]]] = {}
        self._added: dict[Names, Tensor | None] = {}
        self._parts: dict[tuple[int, int], Mixture] = {}

    def part(self, tenant: Tenant, rows: int) -> Mixture:
        """Return the mixture of so many rows of one of its tenants alone."""
        key = id(tenant), rows
        if key not in self._parts:
            self._parts[key] = Mixture(self.products, [tenant] * rows)
        return self._parts[key]

    def per(self, tokens: int, what: str) -> int:
        """Return how many of so many tokens each row has. Raises GymError where rows cannot be told apart."""
        if self.size == 0 or tokens % self.size:
            raise GymError(
                f"{what} computes {tokens} tokens of {self.size} rows, and whose they are cannot be told",
                key="tenants",
                fix="name a tenant for each row of the batch",
            )
        return tokens // self.size

    def concerns(self, place: str, changed_by: Callable[[Tenant], bool]) -> bool:
        """Whether a tenant changed one of the weights of the module at this place."""
        if place not in self._concerned:
            self._concerned[place] = any(changed_by(tenant) for tenant, _ in self.members)
        return self._concerned[place]

    def width(self, names: Names, own: int) -> int:
        """Return the most outputs that a layer has for a row; `own` of them in the base."""
        return max([own, *(rows for _, rows in self._heights(names))])

    def ends(self, names: Names, own: int, width: int) -> list[tuple[Tensor, int]]:
        """Return rows that have fewer outputs than `width`, and how many."""
        heights = self._heights(names)
        told = {id(chosen) for chosen, _ in heights}
        heights += [(rows, own) for rows in [self.base, *(rows for _, rows in self.members)] if id(rows) not in told]
        return [(chosen, rows) for chosen, rows in heights if rows < width and len(chosen)]

    def segments(self, names: Names) -> Segments | None:
        """Return the packed matrices of a weight; None where no tenant has one."""
        if names not in self._segments:
            found = [
                (tenant, rows, tenant.records[name])
                for tenant, rows in self.members
                if (name := tenant.own(names)) in tenant.records
            ]
            self._segments[names] = self._joined(found) if found else None
        return self._segments[names]

    def rest(self, names: Names) -> list[tuple[Record, Tensor]]:
        """Return what else tenants have of a weight, with their rows."""
        if names not in self._rest:
            self._rest[names] = [
                (tenant.rest[name], rows) for tenant, rows in self.members if (name := tenant.own(names)) in tenant.rest
            ]
        return self._rest[names]

    def added(self, names: Names, size: int, like: Tensor) -> Tensor | None:
        """Return what each row adds to a weight of one dimension, `[rows, 1, size]`; None where nobody adds anything."""
        if names not in self._added:
            found = self.rest(names)
            whole = torch.zeros(self.size, 1, size) if found else None
            for record, rows in found:
                assert whole is not None
                whole[rows] = record.values()
            self._added[names] = None if whole is None else whole.to(like.device, like.dtype)
        return self._added[names]

    def _heights(self, names: Names) -> list[tuple[Tensor, int]]:
        """Return the outputs that tenants which changed their number have, with their rows."""
        if names not in self._outputs:
            self._outputs[names] = [
                (rows, tenant.outputs[name])
                for tenant, rows in self.members
                if (name := tenant.own(names)) in tenant.outputs
            ]
        return list(self._outputs[names])

    @staticmethod
    def _joined(found: Sequence[tuple[Tenant, Tensor, np.ndarray]]) -> Segments:
        rows = [rows for _, rows, _ in found]
        starts = torch.tensor([0, *map(len, rows)]).cumsum(0)
        records = torch.from_numpy(np.stack([record for *_, record in found]))
        members = [(tenant, rows) for tenant, rows, _ in found]
        return Segments([tenant.arena for tenant, _ in members], records, starts, torch.cat(rows), members)


_ACTIVE: ContextVar[tuple[Mixture | None, object]] = ContextVar("mixture", default=(None, None))


def active(layer: object = None) -> Mixture | None:
    """Return the mixture that this thread computes for; None for the layer that has seen to it for what it does itself."""
    mixture, seen_to = _ACTIVE.get()
    return None if layer is not None and layer is seen_to else mixture


@contextmanager
def computing(mixture: Mixture | None, layer: object = None) -> Iterator[None]:
    """Let the layers of this thread compute for a mixture; for the base alone with None. `layer` has seen to it for itself."""
    before = _ACTIVE.set((mixture, layer))
    try:
        with torch.no_grad():
            yield
    finally:
        _ACTIVE.reset(before)

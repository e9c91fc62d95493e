"""The names by which models are asked for: `base`, or `base@tenant` for a variant of it. A name is never a path.

Models, and adapters that options name, are called by a few signs. Users are called as a store of variants lets them, such as
`ann@example.com`, so that the first `@` is the one behind the model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")
LONGEST = 256  #: characters of the name of a tenant


@dataclass(frozen=True)
class Asked:
    """A model, and perhaps a tenant of it."""

    model: str
    tenant: str | None = None
    owner: str | None = field(default=None, compare=False)  #: who asks; see `gym_serve.contract.Request.owner`

    @property
    def user(self) -> str:
        """Return who takes turns with others: who asks, or what is asked where those are not told apart."""
        return self.owner or str(self)

    def __str__(self) -> str:
        """Return the name that means it."""
        return self.model if self.tenant is None else f"{self.model}@{self.tenant}"


def asked(name: str) -> Asked | None:
    """Return what a name means; None where no tenant can have this name."""
    model, at, tenant = name.partition("@")
    if not at:
        return Asked(name)
    fits = 0 < len(tenant) <= LONGEST and tenant.isprintable() and tenant not in (".", "..")
    return Asked(model, tenant) if model and fits and not set(tenant) & set("/\\") else None

"""What the routes share: the engine, who may ask which model, and how much at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from gym_serve.api.auth import Access
from gym_serve.api.errors import ONCE, HTTPProblem, unknown_model
from gym_serve.api.metrics import Metrics
from gym_serve.api.options import ApiOptions
from gym_serve.contract import Engine, ServedModel
from gym_serve.errors import BadRequest, Full, RequestError, Unknown
from gym_serve.names import Asked, asked
from gym_torch.generation.turns import has_room

LOG = logging.getLogger(__name__)


class Service:
    """An engine, as the routes see it."""

    def __init__(self, engine: Engine, options: ApiOptions, metrics: Metrics) -> None:
        """Serve an engine within the limits of the options."""
        self.engine, self.options, self.metrics = engine, options, metrics
        self._in_work: Counter[str] = Counter()

    def model(self, name: str, access: Access) -> tuple[ServedModel, Asked]:
        """Return the model that a name asks for. Raises Unknown where it is not there, with the same words where it may not be
        used.
        """
        wanted = asked(name)
        found = {model.name: model for model in self.engine.models()}
        if wanted is None or not access.allows(wanted) or wanted.model not in found:
            raise unknown_model(name)
        model = found[wanted.model]
        if wanted.tenant is None and model.name == next(iter(found)):
            wanted = Asked(model.name, self.options.tenant)
        if wanted.tenant is not None and not (model.tenants and wanted.tenant in self.engine.tenants(model.name)):
            raise unknown_model(name)
        return model, replace(wanted, owner=access.owner)

    async def described(self, name: str, access: Access) -> tuple[ServedModel, Asked]:
        """Return what `model` does, with the template that a tenant has. Raises RequestError."""
        model, wanted = self.model(name, access)
        return model if wanted.tenant is None else await self.told(wanted), wanted

    async def told(self, wanted: Asked, template_options: Mapping[str, Any] | None = None) -> ServedModel:
        """Return a model with the template that a tenant has, and how answers are written with options. Raises RequestError."""
        async with asking(self, wanted):
            return await self.engine.described(wanted.model, wanted.tenant, template_options, wanted.owner)

    def listed(self, access: Access) -> Sequence[tuple[Asked, ServedModel]]:
        """Return the names that may be asked, models before their tenants."""
        names = []
        for model in self.engine.models():
            tenants = self.engine.tenants(model.name) if model.tenants else ()
            names += [(Asked(model.name, tenant), model) for tenant in (None, *tenants)]
        return [(name, model) for name, model in names if access.allows(name)]

    def need(self, what: str, field: str) -> None:
        """Raise BadRequest, naming the field, where the engine does not support what it asks for."""
        if what not in self.engine.supports:
            raise BadRequest(
                "this is not supported by the engine that serves this model", key=field, fix="leave it out"
            )

    @contextmanager
    def admitted(self, user: str, count: int = 1) -> Iterator[None]:
        """Hold a place of a user for so many replies. Raises Full where there is none."""
        most, wanted = self.options.max_concurrent, Counter({user: count})
        if most is not None and not has_room(self._in_work, wanted, most):
            if count > most:
                raise BadRequest(f"asks for {count} replies where {most} may be in work", key="n")
            raise Full(f"{self._in_work.total()} of {most} replies are in work or waiting")
        self._in_work += wanted
        self.metrics.in_work.inc(count)
        try:
            yield
        finally:
            self._in_work -= wanted  # and who has none left is gone from it
            self.metrics.in_work.dec(count)


def told(error: Exception, name: str) -> RequestError:
    """Return what a client is told of an error of an engine: its own words where it is about the request."""
    if isinstance(error, Unknown):
        return unknown_model(name)
    if isinstance(error, RequestError):
        return error
    LOG.error("the engine failed on a request", exc_info=error)
    return RequestError("the server failed on this request")


@asynccontextmanager
async def asking(service: Service, wanted: Asked) -> AsyncIterator[None]:
    """Hold a place while an engine is asked once, within the time; errors are those that a client is told."""
    most = service.options.request_seconds
    with service.admitted(wanted.user):
        try:
            async with asyncio.timeout(most):
                yield
        except TimeoutError as error:
            why = f"the reply took longer than {most:g} s"
            raise HTTPProblem(408, why, code="request_too_slow", headers=ONCE) from error
        except Exception as error:
            raise told(error, str(wanted)) from error

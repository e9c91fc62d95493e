"""`/v1/models`: what may be asked with the token that is given."""

from __future__ import annotations

from typing import Any

from gym_serve.api.auth import Access
from gym_serve.api.service import Service
from gym_serve.contract import ServedModel
from gym_serve.names import Asked


def models(service: Service, access: Access) -> dict[str, Any]:
    """List the models, each before its tenants."""
    return {"object": "list", "data": [_model(name, model) for name, model in service.listed(access)]}


def model(service: Service, name: str, access: Access) -> dict[str, Any]:
    """Return one model. Raises Unknown where it is not there for this token."""
    found, asked = service.model(name, access)
    return _model(asked, found)


def _model(name: Asked, model: ServedModel) -> dict[str, Any]:
    return {
        "id": str(name),
        "object": "model",
        "created": model.created,
        "owned_by": "gym",
        "root": name.model,
        "max_model_len": model.context_length,
        "tasks": sorted(model.tasks),
        "template_hash": model.template_hash,
    }

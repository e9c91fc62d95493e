"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM has them: adapters come and go while their base is served.

They are there where the options name folders for it, for tokens that open everything. Adapters are called as they are asked for.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gym_serve.api import models
from gym_serve.api.auth import Access
from gym_serve.api.errors import HTTPProblem, told_as
from gym_serve.api.fields import Body
from gym_serve.api.service import Service, asking
from gym_serve.names import TENANT, Asked, asked

Name = Annotated[str, Field(max_length=512)]


class LoadAdapter(Body):
    """An adapter to load."""

    lora_name: Name
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    load_inplace: bool = False


class UnloadAdapter(Body):
    """An adapter to forget."""

    lora_name: Name


async def load_adapter(service: Service, body: LoadAdapter, access: Access) -> dict[str, Any]:
    """Return the adapter as `/v1/models` lists it, once it answers."""
    name = _adapter(service, body.lora_name, access)
    assert name.tenant is not None
    with told_as({"model": "lora_path"}):
        async with asking(service, name):
            await service.engine.add_adapter(name.model, name.tenant, body.lora_path, body.load_inplace)
    return models.model(service, str(name), access)


async def unload_adapter(service: Service, body: UnloadAdapter, access: Access) -> dict[str, Any]:
    """Say that an adapter is gone; replies under way are finished with it."""
    name = _adapter(service, body.lora_name, access)
    assert name.tenant is not None
    first = service.engine.models()[0].name
    if name == Asked(first, service.options.tenant):
        raise HTTPProblem(400, f"`{first}` means this one as long as the server runs (`tenant`)", key="lora_name")
    async with asking(service, name):
        await service.engine.remove_adapter(name.model, name.tenant)
    return {"id": str(name), "object": "model", "deleted": True}


def _adapter(service: Service, given: str, access: Access) -> Asked:
    """Return the adapter that a name means, with the model that it is of. Raises HTTPProblem."""
    if "*" not in access.patterns:
        raise HTTPProblem(403, 'adapters are loaded with a token for everything: `models: ["*"]`')
    name, known = asked(given), [model.name for model in service.engine.models()]
    if name is None or name.tenant is None or name.model not in known or not TENANT.fullmatch(name.tenant):
        last = given.rpartition("@")[2]
        example = f"{known[0]}@{last if TENANT.fullmatch(last) else 'NAME'}"
        raise HTTPProblem(
            400, f"an adapter is called as it is asked for, with its model: such as `{example}`", key="lora_name"
        )
    return name

"""From the options of a backend to a model that can be asked: its key, its price."""

from __future__ import annotations

import os
from typing import Any

from gym_training_free.config import OpenAI, unsent_key
from gym_training_free.endpoint.chat import ChatEndpoint
from gym_training_free.endpoint.local_server import LocalServer
from gym_training_free.endpoint.price import Price, listed


def endpoint(config: OpenAI, run: Any = None, key: str | None = None) -> ChatEndpoint:
    """Return the model behind an endpoint; `key` stands in for the environment. Raises GymError where there is no key.

    A folder is served by gym-serve, from the first request on until nobody holds what is returned any more.
    """
    if config.folder is not None:
        if key is not None:
            raise unsent_key("api_key", config.folder)
        config.check()
        server = LocalServer(config.folder, config.timeout)
        return _endpoint(config, str(server.model), server.where, config.price or Price(), server.token, server)
    if key is None:
        config.check()
        key = os.environ.get(config.api_key_env, "") if config.api_key_env else ""
    return _endpoint(config, config.path, config.address, config.price or listed(config.path), key.strip())


def _endpoint(
    config: OpenAI, name: str, where: str, price: Price | None, key: str, server: LocalServer | None = None
) -> ChatEndpoint:
    return ChatEndpoint(
        name,
        where,
        price,
        key,
        config.timeout,
        config.concurrency,
        config.retries,
        config.backoff,
        config.length_key,
        config.extra_body,
        server,
    )

"""From the options of a backend to a model that can be asked: its key, its price."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gym_training_free.endpoint.chat import ChatEndpoint
from gym_training_free.endpoint.price import Price, listed

if TYPE_CHECKING:
    from gym_training_free.config import OpenAI


def endpoint(config: OpenAI, run: Any = None, key: str | None = None) -> ChatEndpoint:
    """Return the model behind an endpoint; `key` stands in for the environment. Raises GymError where there is no key."""
    if key is None:
        config.check()
        key = os.environ.get(config.api_key_env, "") if config.api_key_env else ""
    return ChatEndpoint(
        config.path,
        config.base_url.rstrip("/"),
        price(config),
        key.strip(),
        config.timeout,
        config.concurrency,
        config.retries,
        config.backoff,
        config.length_key,
        config.extra_body,
    )


def price(config: OpenAI) -> Price | None:
    """Return what tokens cost: as said, nothing on this machine, else as listed; None where nobody knows."""
    return config.price or (Price() if config.local else listed(config.path))

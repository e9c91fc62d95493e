"""What a backend promises whose model is behind a server: it answers messages and shows no weights."""

from __future__ import annotations

from typing import ClassVar

from gym_core.kinds import Backend


class ChatBackend(Backend):
    """Base of every backend that answers messages and shows no weights.

    `build(run=Run)` returns a `gym_training_free.endpoint.chat.ChatModel`.
    """

    outside: ClassVar[str] = "a server that answers prompts"

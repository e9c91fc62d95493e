"""What can be wrong with a request. Each class has the HTTP status that says so; a front maps no error by its words."""

from __future__ import annotations

from typing import ClassVar

from gym_core import GymError


class RequestError(GymError):
    """A request that an engine does not answer. What is told of it may be shown to whoever asked."""

    status: ClassVar[int] = 500


class BadRequest(RequestError):
    """It asks for what cannot be, or for what the engine does not support; `key` names the field."""

    status = 400


class Unknown(RequestError):
    """There is no such model, or no such tenant. The words are the same for both, and for what is not allowed."""

    status = 404


class TooLong(BadRequest):
    """The prompt is longer than the model or a limit allows. Clients look for "prompt is too long" among bad requests."""


class Full(RequestError):
    """The queue is full. It may be asked again after `retry_after` seconds."""

    status = 429

    def __init__(self, why: str, retry_after: float = 1.0) -> None:
        """Say why, and when to come back, in seconds."""
        self.retry_after = retry_after
        super().__init__(why, fix=f"try again in {retry_after:g} s")


class Gone(RequestError):
    """Whoever asked has left, or the engine is closing."""

    status = 499

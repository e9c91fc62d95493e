"""The reward `http`: an endpoint that scores completions. What asks it stands in a module of its own, for it imports urllib3."""

from __future__ import annotations

import os
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from gym_core.errors import GymError
from gym_rewards.reward import Reward, Seconds


class Http(Reward):
    """What an endpoint of yours says: it gets JSON by POST and returns `{"scores": [...]}`."""

    target: ClassVar[str] = "gym_rewards.builtin.http_scores:HttpScore"

    url: Annotated[str, Field(pattern=r"^https?://", examples=["http://127.0.0.1:8000/score"])]
    """Address; redirects are not followed."""
    token: str = ""
    """Name of an environment variable whose value is sent as a bearer token."""
    batch: PositiveInt = 64
    """Completions in one request."""
    timeout: Seconds = 30.0
    """Seconds for one request, to the last byte of the reply."""
    retries: Annotated[int, Field(ge=0, le=20)] = 3
    """Times a request is sent again after a broken connection, a timeout or status 429, 500, 502, 503 or 504."""
    backoff: Annotated[float, Field(ge=0, le=60)] = 0.5
    """Seconds before the first repetition, twice as long before each further one, unless the endpoint says how long
    (`Retry-After`); two minutes at most."""

    def check(self) -> None:
        """Raise GymError where the variable with the token is not set."""
        if self.token and not os.environ.get(self.token):
            raise GymError(
                f"the environment variable {self.token} is not set",
                key="algorithm.rewards",
                fix=f"export {self.token}, or leave `token` out",
            )

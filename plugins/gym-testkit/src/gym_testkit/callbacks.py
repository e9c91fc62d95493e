"""The component that laws and authors put into recipes; a run with it needs the extra `torch`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_core import Callback


class Kill(Callback):
    """Kills the process as `kill -9` would, once: the same run started again goes through."""

    target: ClassVar[str] = "gym_testkit.kill:KillOnce"

    step: Annotated[int, Field(ge=1)] = 7
    """Optimizer step after which the process dies."""

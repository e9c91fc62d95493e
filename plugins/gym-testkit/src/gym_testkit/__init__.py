"""gym-testkit: `pytest --gym-dist gym-foo` holds a plugin to the laws of its kind; `gym new-plugin` writes one.

This module knows only the component that laws and authors put into recipes; pytest enters through `gym_testkit.plugin`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_core import Callback

__version__ = "0.1.0"


class Kill(Callback):
    """Kills the process as `kill -9` would, once: the same run started again goes through."""

    target: ClassVar[str] = "gym_testkit.kill:KillOnce"

    step: Annotated[int, Field(ge=1)] = 7
    """Optimizer step after which the process dies."""

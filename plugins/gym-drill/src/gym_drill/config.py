"""The options of the callback of `gym reproduce`. No torch here."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from gym_core import Callback


class Reproduction(Callback):
    """Set by `gym reproduce`: refuses other data or models than those of the run that is reproduced, and may end it early."""

    target: ClassVar[str] = "gym_drill.reproduction_observer:ReproductionObserver"

    steps: PositiveInt | None = None
    """Steps after which to end, on the learning-rate schedule of the whole run; by default the run is carried out whole."""
    anyway: bool = False
    """Whether other data and models are said, and no error."""

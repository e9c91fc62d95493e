"""How far values go by which replies are drawn, in options and in requests alike."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
#: far enough from 0 that no logit of a model, divided by it, is more than a float holds
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=10)]

"""How answers are drawn, for commands that ask by themselves."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gym_serve.contract import Sampling
from gym_serve.options import ServingOptions
from gym_serve.sampling_bounds import RepetitionPenalty, Temperature, TopP
from gym_serve.template_options import TemplateSettings


class DrawingOptions(ServingOptions):
    """Which models answer, and how answers are drawn."""

    temperature: Temperature = 0.0
    """0 takes the likeliest token each time; more gives more variety."""
    top_p: TopP = 1.0
    """Tokens of this much probability alone are drawn."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """So many of the likeliest tokens alone are drawn; 0 is all."""
    repetition_penalty: RepetitionPenalty = 1.0
    """More than 1 makes repetitions less likely."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most tokens of an answer; by default what the context leaves."""
    seed: int | None = None
    """The same seed gives the same answers."""

    def sampling(self) -> Sampling:
        """Return how answers are drawn."""
        names = ("temperature", "top_p", "top_k", "repetition_penalty", "max_tokens", "seed")
        return Sampling(**{name: getattr(self, name) for name in names})


class AnswerOptions(DrawingOptions, TemplateSettings):
    """Which models answer, how answers are drawn, and what conversations are told that the model lays out."""

    system: str = ""
    """What the model is told first."""

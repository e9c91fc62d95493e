"""The reward `judge`: what a model says of an answer. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt, SerializeAsAny

from gym_core.component import Slot
from gym_rewards.reward import Reward
from gym_training_free.kinds import ChatBackend


class Judge(Reward):
    """A grade from 0 to 1 that a model gives an answer, by a rubric; where it gives none, it says nothing.

    With Training-Free GRPO each grade is a call of the run: in its journal, its ledger and within its caps, and the critic reads
    the judge's reasons. With other algorithms `max_cost` and `max_total_tokens` here bound a run.
    """

    target: ClassVar[str] = "gym_training_free.llm_judge:LLMJudge"
    outside: ClassVar[str] = "a server that answers prompts"
    own_timeout: ClassVar[bool] = True
    takes_account: ClassVar[bool] = True
    names_itself: ClassVar[frozenset[str]] = frozenset({"model"})
    changeable: ClassVar[frozenset[str]] = frozenset({"max_cost", "max_total_tokens"})

    model: Annotated[
        SerializeAsAny[ChatBackend],
        Slot("backends", default="openai", bare="path", selector="backend"),
        Field(
            examples=[
                {"path": "deepseek-chat", "base_url": "https://api.deepseek.com/v1", "api_key_env": "DEEPSEEK_API_KEY"}
            ]
        ),
    ]
    """Model that grades."""
    rubric: str = "Grade how correct, complete and clear the answer is."
    """What to look at, in a sentence or more."""
    answer: str = "answer"
    """Column of the reference answer; rows may be without."""
    max_new_tokens: PositiveInt = 1024
    """Most tokens of a grade with its reasons."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature of the judge."""
    prompts: str = "en"
    """Language of the instructions, or a folder with your own."""
    max_cost: Annotated[float, Field(gt=0)] | None = None
    """US dollars for all grades, where the algorithm keeps no account."""
    max_total_tokens: PositiveInt | None = None
    """Tokens for all grades in both directions, where the algorithm keeps no account."""

    def check(self) -> None:
        """Raise GymError where the model or the prompts need something that is not there."""
        from gym_training_free.prompting import Prompts

        self.model.check()
        Prompts.load(self.prompts)

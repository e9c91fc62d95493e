"""Reward models as rewards: what a recipe can say of them. Nothing heavy is imported; the code stands beside."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, SerializeAsAny, field_validator

from gym_core import Slot
from gym_data.location import ModelName
from gym_rewards import Reward
from gym_torch.kinds import LoadTimeQuantizer, at_load


class Model(Reward):
    """What a reward model says of prompt and completion.

    A causal language model with a value head (`value_head.safetensors`), or a sequence classifier of transformers with one
    label and a linear head on its last state. It is held in memory beside the model that is trained.
    """

    target: ClassVar[str] = "gym_rl.reward_models.scores:ModelScore"

    path: Annotated[ModelName, Field(min_length=1, examples=["runs/reward"])]
    """The directory of a run that made one, a model directory, or an id on the Hugging Face Hub."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    quantization: Annotated[SerializeAsAny[LoadTimeQuantizer] | None, Slot("quantizers")] = None
    """Hold the weights of its linear layers in a few bits, as `model.quantization` does those of the model that is trained."""
    tools: str = "tools"
    """Column of the tools that the prompt offers, where the rows have one."""
    batch: PositiveInt = 16
    """Completions in one forward pass."""

    @field_validator("quantization", mode="before")
    @classmethod
    def _at_load(cls, quantizer: Any) -> LoadTimeQuantizer | None:
        return at_load(quantizer)

    def check(self) -> None:
        """Ask the quantizer whether all that it needs is there."""
        if self.quantization:
            self.quantization.check()


class ProcessModel(Model):
    """How likely the steps of a completion are right, says a process reward model: a causal language model with a value head."""

    target: ClassVar[str] = "gym_rl.reward_models.scores:ProcessScore"

    separator: Annotated[str, Field(min_length=1)] = "\n"
    """What ends a step, as in the rows that it trained on; blank steps do not count."""
    combine: Literal["min", "product", "last", "mean"] = "min"
    """What the completion earns: the chance of its weakest step, of all steps together, of the last one, or the mean."""

"""The kind `rollouts`: rollout engines, which generate completions, and their options. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Collection, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from gym_core import Recipe
from gym_core.component import Component
from gym_core.errors import GymError, RecipeError
from gym_data.kinds import Data
from gym_torch.kinds import part

if TYPE_CHECKING:
    from gym_torch.generation.row import Completion, Inputs


@dataclass(frozen=True)
class RolloutRequest:
    """Completions that are asked for. Raises GymError unless there are a stream, a limit and inputs for each prompt."""

    prompts: Sequence[Sequence[int]]  #: token ids, at least one each
    max_new_tokens: int
    temperature: float = 0.0  #: 0 is greedy
    top_p: float = 1.0
    seed: int = 0
    streams: Sequence[int] = ()  #: for each prompt the number of its random numbers; by default its index
    top_k: int = 0  #: 0 is off
    min_p: float = 0.0  #: 0 is off
    limits: Sequence[int] = ()
    """For each prompt the most tokens to generate; by default, and at most, `max_new_tokens`."""
    stop: Sequence[str] = ()  #: texts that end an answer, none of them empty; see `RolloutEngine.generate`
    inputs: Sequence[Inputs | None] = ()
    """For each prompt what the model is given beside its tokens, such as images, or None; by default None. Equal ones give the
    same. There are some for engines alone that take them: `RolloutEngineConfig.takes_inputs`."""
    ends: Collection[int] = ()  #: further tokens that end an answer; there are some beside `inputs` alone
    turns: MutableMapping[str, Any] | None = None
    """Where an engine may keep what it computed, for a request of the next turn: the same mapping comes with all turns of some
    completions, while the weights stay. None where completions have one turn."""

    def __post_init__(self) -> None:
        """Number the prompts and limit their completions, where nobody did."""
        count = len(self.prompts)
        object.__setattr__(self, "streams", self.streams if len(self.streams) else range(count))
        object.__setattr__(self, "limits", self.limits if len(self.limits) else [self.max_new_tokens] * count)
        given = any(
            each is not None for each in self.inputs
        )  # none are as many as there are prompts: others may be asked next
        object.__setattr__(self, "inputs", self.inputs if given else [None] * count)
        for what, each in (("streams", self.streams), ("limits", self.limits), ("inputs", self.inputs)):
            if len(each) != count:
                raise GymError(f"{len(each)} {what} for {count} prompts", where="RolloutRequest")


@runtime_checkable
class RolloutEngine(Protocol):
    """Generates completions: every process of a run has one, and asks it for its share of them."""

    @property
    def exact(self) -> bool:
        """Whether its log-probabilities are those of the trainer to rounding: the same weights, computed with in fp32."""
        ...

    def refresh(self) -> None:
        """Generate with the weights as they are now, from the next call on. Every process calls it, at the same place."""
        ...

    def generate(self, request: RolloutRequest) -> list[Completion]:
        """Return a completion for each prompt, in order: at least one token each, the one that ended it included, and at most
        its limit. Where `stop` names texts, it ends with the token that makes one of them whole in its own text, special tokens
        included, and says so (`Completion.stop`); `gym_torch.generation.stop_strings` finds that token.

        A completion is a function of the weights, its prompt, the seed and its stream, whatever else is asked with it, as
        far as the engine can have it so. A log-probability is that of the distribution that is drawn from: at this
        temperature, over the tokens that `min_p`, `top_k` and then `top_p` leave; at temperature 0 that of temperature 1, uncut.
        Raises GymError where it cannot generate, or knows no stop strings and is asked for some.
        """
        ...

    def close(self) -> None:
        """End what it started."""
        ...


class RolloutEngineConfig(Component):
    """Base of the options of rollout engines. Named by an algorithm's `rollouts`.

    `build(adapted=..., tokenizer=Tokenizer, path=Path, precision=str, output=Path, ranks=Ranks, routers=...)` returns a
    `gym_rl.rollout_engine.RolloutEngine` for the weights of `adapted` (`gym_torch.model.adapted.AdaptedModel`). `path` is the
    directory of the model that was adapted, `precision` what the trainer computes in (`fp32`, ...), `output` the directory
    of the run; `routers` (`gym_torch.model.expert_routing.Routers`) is None, or asks for the experts of each token in
    `Completion.routed`.
    """

    kind: ClassVar[str] = "rollouts"

    takes_inputs: ClassVar[bool] = False
    """Whether it answers prompts with more than tokens, such as images (`RolloutRequest.inputs`)."""


def check_inputs(recipe: Recipe, engine: RolloutEngineConfig, environment: bool, routing_replay: bool) -> None:
    """Raise RecipeError for what is not done of prompts with more than tokens, where the data of the recipe may bring some."""
    data = part(recipe, Data)
    if data is None or not data.brings_inputs():
        return
    for refused, key, what, fix in (
        (not engine.takes_inputs, "rollouts", "this engine takes text alone", "name `local`, or leave it out"),
        (environment, "environment", "an environment goes on with text alone", "leave it out"),
        (routing_replay, "routing_replay", "experts are recorded of text alone", "leave it out"),
    ):
        if refused:
            raise RecipeError(f"prompts may have images, and {what}", key=f"algorithm.{key}", fix=fix)

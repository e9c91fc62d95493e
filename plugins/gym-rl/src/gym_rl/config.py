"""What every algorithm of reinforcement learning asks of a recipe. Nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, SerializeAsAny, model_validator

from gym_core import Flat, Slot
from gym_rewards.reward import Reward
from gym_rewards.reward_names import named
from gym_rl.rollout_engine import Engine, Local
from gym_torch import TorchAlgorithm
from gym_torch.config import Further


class PolicyGradient(TorchAlgorithm):
    """Base of the algorithms that answer prompts, have the answers judged, and make the better ones more likely.

    `train.batch_size * train.accumulate` is the number of answers in an optimizer step.
    """

    target: ClassVar[str] = "gym_rl.trainer:RolloutTrainer"
    rows: ClassVar[str] = "prompt"
    schedule: ClassVar[str] = "gym_rl.rollouts.longest:Bound"
    measure: ClassVar[str] = "reward"
    better: ClassVar[str] = "higher"
    disable_dropout: ClassVar[bool] = True
    advantage: ClassVar[str] = ""
    """`module:function` from rewards `[answers]` and groups `[answers]` to advantages `[answers]`."""
    credit: ClassVar[str] = "gym_rl.rollouts.credit_assignment:of_answers"
    """`module:function` from a round to what each of its tokens earned; see `gym_rl.rollouts.credit_assignment`."""

    rewards: Annotated[
        list[Annotated[SerializeAsAny[Reward], Slot("rewards")]],
        Field(min_length=1, examples=[[{"name": "length", "maximum": 2, "slack": 14}]]),
        Flat("reward_model", lambda path: [{"name": "model", "path": path}]),
    ]
    """What judges the answers; their scores are added up by their weights."""
    rollouts: Annotated[SerializeAsAny[Engine], Slot("rollouts", default="local")] = Local()
    """What answers the prompts."""
    reward_timeout: Annotated[float, Field(gt=0)] = 300.0
    """Seconds that a reward may take for the answers of a round."""
    on_error: Literal["stop", "mask"] = "stop"
    """What happens where a reward fails: the run stops with its name and the row, or such answers are not learnt from."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Answers to each prompt."""
    mini_batches: PositiveInt = 1
    """Optimizer steps for the answers of one round: more than one, and the later ones learn from an older policy."""
    max_new_tokens: Annotated[PositiveInt, Field(examples=[16])] = 256
    """Most tokens of an answer."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Of the distribution that answers are drawn from, and that is trained."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draw from the most likely tokens that have this probability together, and train that distribution; 1 from all of them."""
    beta: Annotated[float, Field(ge=0)] = 0.0
    """What a departure from the reference costs, times its KL divergence; 0 needs no reference."""
    kl: Literal["k2", "k3", "k3_is", "reward"] = "k3_is"
    """How it costs: as a term of the loss, an estimator of `gym_rl.formulas.kl`; or `reward`, k1 taken from every reward."""
    reference_model: str | None = None
    """What is departed from: a family, a folder or a Hub id; by default the model as it was before training."""
    correction: Literal["none", "tis", "tis_answers", "icepop", "mis", "geo"] = "tis"
    """Off-policy correction of tokens that were sampled by other arithmetic than is trained; the weights stand in
    `gym_rl.formulas.off_policy_correction`."""
    max_mismatch: Annotated[float, Field(gt=0)] = 0.1
    """Mean difference of sampled and trained log-probabilities in nats, on a round's first batch, above which a run stops."""
    routing_replay: bool = False
    """Send each token in the update to the experts that it went to when it was sampled; for mixtures of experts alone."""
    max_resample: Annotated[int, Field(ge=0)] = 0
    """How often other prompts are asked in place of those to which all answers are as good, which teaches nothing."""
    filter_metric: str | None = None
    """The reward by which answers are told apart there, by its name in the log; by default all that do not judge length."""
    mask_truncated: bool = False
    """Whether answers that reach `max_new_tokens` are not learnt from; their rewards still count where others are compared."""
    eval_samples: PositiveInt = 1
    """Answers to each held-out prompt, whose mean reward is taken."""
    eval_temperature: Annotated[float, Field(ge=0)] = 0.0
    """Temperature of these answers; 0 takes the likeliest token each time."""
    keep_rollouts: Annotated[int, Field(ge=0)] = 1
    """Keep the answers of every n-th round, and of evaluations, for `gym rollouts show`; 0 keeps none."""

    def judges(self) -> list[Reward]:
        """Return all that judges the answers: `rewards`, and what an algorithm adds."""
        return self.rewards

    def further(self) -> Sequence[Further]:
        """Return the reference."""
        return (Further(self.reference_model),) if self.beta else ()

    def generated(self) -> int:
        """Return the most tokens of an answer."""
        return self.max_new_tokens

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if self.max_resample and self.group_size == 1:
            raise ValueError("`max_resample` compares answers to one prompt, and `group_size` is 1")
        if self.eval_samples > 1 and not self.eval_temperature:
            raise ValueError("several `eval_samples` are all the same where `eval_temperature` is 0")
        return self

    @model_validator(mode="after")
    def _tells_apart(self) -> Self:
        if self.filter_metric is not None:
            known = named(self.judges())
            if not self.max_resample:
                raise ValueError("`filter_metric` does nothing where `max_resample` is 0")
            if self.filter_metric not in known:
                raise ValueError(f"`filter_metric` names no reward of the recipe: there are {', '.join(known)}")
        return self

    @model_validator(mode="after")
    def _refers(self) -> Self:
        if self.reference_model is not None and not self.beta:
            raise ValueError("`reference_model` does nothing where `beta` is 0")
        return self


class Clipping(PolicyGradient):
    """Base of the algorithms that clip the ratio to the policy that answered."""

    clip_low: Annotated[float, Field(ge=0, le=1)] = 0.2
    """How far below 1 the ratio may push."""
    clip_high: Annotated[float, Field(ge=0)] = 0.2
    """How far above 1 the ratio may push."""

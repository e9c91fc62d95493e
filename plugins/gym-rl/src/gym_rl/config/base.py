"""Options that all algorithms of reinforcement learning share. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypedDict

from pydantic import Field, PositiveInt, SerializeAsAny, model_validator

from gym_core import Recipe, RecipeError, Slot
from gym_data.location import ModelName
from gym_rewards.reward import Reward
from gym_rewards.reward_names import named
from gym_rl.config.local_engine import LocalEngineConfig
from gym_rl.environment import Environment
from gym_rl.rollout_engine import RolloutEngineConfig, check_inputs
from gym_torch import TorchAlgorithm
from gym_torch.config import Further
from gym_torch.following_config import MIXUP_ALPHA, MixupAlpha, SyncSteps, check_follows, check_mixture

KLTerm = Literal["k2", "k3", "k3_is", "full"]
KLEstimator = Literal[KLTerm, "k1_in_reward"]
LossAggMode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


class Truncation(TypedDict):
    """Which tokens can be drawn, as sampler and trainer are told; see `gym_torch.model.nucleus.drawable`."""

    top_p: float
    top_k: int
    min_p: float


class PolicyGradient(TorchAlgorithm):
    """Base of the policy gradient algorithms: sample completions, score them, and make the better ones more likely.

    `train.batch_size * train.accumulate` is the number of completions in an optimizer step.
    """

    contribution: ClassVar[str] = "gym_rl.training_setup:rollouts"
    changeable: ClassVar[frozenset[str]] = frozenset({"reward_timeout"})
    rows: ClassVar[str] = "prompt"
    largest_steps: ClassVar[str] = "gym_rl.rollouts.largest_rollouts:LargestRollouts"
    measure: ClassVar[str] = "reward"
    better: ClassVar[str] = "higher"
    context_parallel: ClassVar[bool] = True
    disable_dropout: ClassVar[bool] = True
    advantage: ClassVar[str] = ""
    """`module:function` from rewards `[completions]` and groups `[completions]` to advantages `[completions]`."""
    credit: ClassVar[str] = "gym_rl.rollouts.compute_advantages:advantages_of_completions"
    """`module:function` from a round to what each of its tokens earned; see `gym_rl.rollouts.compute_advantages`."""

    greedy_baseline: ClassVar[bool] = False
    """Whether a greedy completion to each prompt is sampled and scored beside its group: `gym_rl.rollouts.experience.Experience`
    then has `baselines`."""

    rewards: Annotated[
        list[Annotated[SerializeAsAny[Reward], Slot("rewards")]],
        Field(min_length=1, examples=[[{"name": "length", "maximum": 2, "slack": 14}]]),
    ]
    """Reward functions and reward models; the reward of a completion is the weighted sum of their scores
    (`reward_funcs` in TRL)."""
    rollouts: Annotated[SerializeAsAny[RolloutEngineConfig], Slot("rollouts", default="local")] = LocalEngineConfig()
    """Rollout engine: generates the completions."""
    environment: Annotated[SerializeAsAny[Environment] | None, Slot("environments")] = None
    """Environment: answers the model, turn after turn, before a completion is scored; by default a completion is one turn
    (`tools`, `environment_factory`, `max_tool_calling_iterations` in TRL, `multi_turn`, `max_assistant_turns` in verl)."""
    reward_timeout: Annotated[float, Field(gt=0)] = 300.0
    """Reward timeout: seconds that a reward may take for the completions of a round."""
    on_error: Literal["stop", "mask"] = "stop"
    """What to do where a reward fails: `stop` the run with its name and the row, or `mask` these completions in the loss."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Group size: completions sampled for each prompt (`num_generations` in TRL, `rollout.n` in verl)."""
    num_mini_batches: PositiveInt = 1
    """Mini-batches: optimizer steps for the completions of one round. More than one makes the later ones off-policy."""
    num_iterations: PositiveInt = 1
    """Iterations over the completions of a round: how often each of them is learnt from (`num_iterations` in TRL, `ppo_epochs` in
    verl). A round has that many times `num_mini_batches` optimizer steps."""
    max_new_tokens: Annotated[PositiveInt, Field(examples=[16])] = 256
    """Maximum length of a completion, in tokens: all of its turns, and what an environment says between them
    (`max_completion_length` in TRL)."""
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)] = []
    """Stop strings: texts, such as `</answer>`, that end a completion or a turn of one, as a token does that ends a turn, and are
    part of what is trained and scored (`stop_strings` in transformers). By default there are none."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature. The policy is trained at the same temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: sample from the most likely tokens of this total probability, and train that distribution; 1 is off."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Sample from that many of the most likely tokens, and train that distribution; 0 is off."""
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Sample from tokens at least this many times as likely as the most likely one, and train that distribution; 0 is off."""
    loss_agg_mode: LossAggMode = "token-mean"
    """Loss aggregation (the name and the values are verl's): the mean over the tokens of a step; over its completions, of the
    mean or of the sum over the tokens of each; or of that sum over `max_new_tokens`. See `gym_rl.formulas.loss_aggregation`."""
    beta: Annotated[float, Field(ge=0)] = 0.0
    """KL coefficient: weight of the KL divergence from the reference model; 0 needs no reference."""
    kl_estimator: KLEstimator = "k3_is"
    """KL estimator: `k2`, `k3` or `k3_is` (`gym_rl.formulas.kl`) as a term of the loss; `full`, the divergence itself over the
    whole vocabulary as that term (on-policy distillation, where `ref_model` is a teacher); or `k1_in_reward`, subtracted from the
    reward of each token."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """Entropy coefficient: weight of an entropy bonus, the entropy at each token, added up as the losses of tokens are
    (`entropy_coeff` in verl); 0 is off."""
    entropy_target: Annotated[float | None, Field(gt=0)] = None
    """Adaptive entropy coefficient: the entropy of a round, in nats a token as logged, up to which the bonus counts and then
    grows by `entropy_coef_delta`; above it none counts, and it shrinks (arXiv:2505.22312; `use_adaptive_entropy` in TRL). By
    default `entropy_coef` stays what it is."""
    entropy_coef_delta: Annotated[float, Field(gt=0)] = 0.005
    """Adaptive entropy coefficient: what it grows or shrinks by after a round."""
    entropy_coef_min: Annotated[float, Field(ge=0)] = 0.0
    """Adaptive entropy coefficient: the smallest that it becomes."""
    entropy_coef_max: Annotated[float, Field(ge=0)] = 1.0
    """Adaptive entropy coefficient: the largest that it becomes."""
    kl_target: Annotated[float | None, Field(gt=0)] = None
    """Adaptive KL coefficient: the KL divergence from the reference, in nats a completion, that `beta` is adapted to after each
    round (`target` in TRL), with `kl_estimator: k1_in_reward`; by default `beta` stays what it is."""
    kl_horizon: Annotated[float, Field(gt=0)] = 10_000.0
    """Adaptive KL coefficient: completions in which it changes by a fifth at most (`horizon` in TRL, verl)."""
    top_entropy_quantile: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the tokens of a round, those at which the policy was least sure when it began, that count in the policy loss
    (arXiv:2506.01939 has 0.2; the same name in TRL); 1 is all of them."""
    ref_model: ModelName | None = None
    """Reference model: a family, a folder or a Hub id; by default the model as it was before training."""
    ref_model_sync_steps: SyncSteps = None
    ref_model_mixup_alpha: MixupAlpha = MIXUP_ALPHA
    importance_sampling_correction: Literal["none", "tis", "sequence_tis", "icepop", "mis", "geo"] = "tis"
    """Importance sampling correction for tokens whose log-probabilities differ between rollout engine and trainer: truncated
    (`tis`, `sequence_tis`), masked (`icepop`, `mis`, `geo`) or none; see `gym_rl.formulas.off_policy_correction`."""
    off_policy_mask_threshold: Annotated[float | None, Field(gt=0)] = None
    """Off-policy sequence mask: leave tokens of negative advantage out of the policy loss where the completion became less likely
    by more than this many nats a token since it was sampled (DeepSeek-V3.2; the same name in TRL); by default all are in."""
    max_mismatch: Annotated[float, Field(gt=0)] = 0.1
    """Largest training-inference mismatch: mean absolute difference of sampled and trained log-probabilities, in nats, on the
    first batch of a round. Above it the run stops."""
    routing_replay: bool = False
    """Rollout routing replay (R3): route each token in the update to the experts that it used when it was sampled. For mixtures
    of experts."""
    max_resample: Annotated[int, Field(ge=0)] = 0
    """Dynamic sampling: how often to sample further prompts in place of groups whose rewards are all equal; 0 is off."""
    filter_metric: str | None = None
    """Dynamic sampling: the reward whose values decide whether a group is kept, by its name in the log; by default the sum of all
    that do not measure length."""
    mask_truncated_completions: bool = False
    """Mask truncated completions: those that reach `max_new_tokens` are left out of the loss, and of what it is divided by
    (TRL's `grpo` divides by all). Their rewards still count in the advantages of others."""
    eval_samples: PositiveInt = 1
    """Evaluation: completions sampled for each held-out prompt; `eval_reward` is their mean."""
    eval_temperature: Annotated[float, Field(ge=0)] = 0.0
    """Evaluation: sampling temperature; 0 is greedy decoding."""
    log_completions: Annotated[int, Field(ge=0)] = 1
    """Log completions of every n-th round and of each evaluation, for `gym rollouts show`; 0 logs none."""

    def judges(self) -> list[Reward]:
        """Return all rewards: `rewards`, and what an algorithm adds."""
        return self.rewards

    def check(self) -> None:
        """Raise GymError where something is not there that a reward or the rollout engine needs."""
        for component in filter(None, (*self.judges(), self.rollouts, self.environment)):
            component.check()

    @property
    def full_kl(self) -> bool:
        """Whether the divergence from the reference is taken over the whole vocabulary, in the loss."""
        return bool(self.beta) and self.kl_estimator == "full"

    def truncation(self) -> Truncation:
        """Return which tokens can be drawn."""
        return {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise RecipeError where parts of the recipe do not fit each other, and what the base raises."""
        super().check_recipe(recipe)
        train, by = recipe.train, (recipe.train.metric_for_best_model or self.measure).removeprefix("eval_")
        keeps = train.keep_best or train.load_best_model_at_end
        if keeps and by == self.measure and not self._any_counts():
            raise RecipeError(
                "every reward has weight 0, so all checkpoints are as good as the first",
                key="train.keep_best" if train.keep_best else "train.load_best_model_at_end",
                fix=f"leave it out, or set `train: {{metric_for_best_model: rewards/{next(iter(named(self.judges())))}/mean, "
                "greater_is_better: true}`",
            )
        check_follows(recipe, self.ref_model_sync_steps)
        check_inputs(recipe, self.rollouts, self.environment is not None, self.routing_replay)

    def before_loading(self) -> None:
        """Import what rewards run in processes of their own. Raises PluginError with the name of one that cannot be used."""
        from gym_rewards.reward_manager import RewardManager  # slow to import

        apart = {name: reward for name, reward in named(self.judges()).items() if reward.separate_process}
        RewardManager(apart, self.reward_timeout).close()

    def shown(self) -> str:
        """Return the reward, or the divergence from the reference where that alone is learnt from."""
        return self.measure if self._any_counts() or not self.beta else "kl"

    def _any_counts(self) -> bool:
        return any(reward.weight for reward in self.judges())

    def evaluation_metrics(self) -> Mapping[str, str]:
        """Return nothing beside the reward: completions are scored, and nothing is learnt from them."""
        return {}

    def further(self) -> Sequence[Further]:
        """Return the reference."""
        return (Further(self.ref_model, follows=self.ref_model_sync_steps is not None),) if self.beta else ()

    def shares_prefixes(self) -> bool:
        """Return whether prompts may: not where each of their tokens has experts of its own."""
        return not self.routing_replay

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Return the functions that an environment offers."""
        return self.environment.tools() if self.environment else ()

    def only_beside(self, number: int) -> bool:
        """Whether round `number`, from 0, trains only what is beside the model, such as a critic, and not the policy."""
        return False

    def generated(self) -> int:
        """Return the most tokens of a completion."""
        return self.max_new_tokens

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if self.max_resample and self.group_size == 1 and not self.greedy_baseline:
            raise ValueError("`max_resample` compares completions of one prompt, and `group_size` is 1")
        if self.eval_samples > 1 and not self.eval_temperature:
            raise ValueError("several `eval_samples` are all the same where `eval_temperature` is 0")
        if self.top_k == 1:
            raise ValueError("`top_k` of 1 leaves one token to draw, and nothing can be learnt from that")
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
    def _adapts(self) -> Self:
        step, low, high = self.entropy_coef_delta, self.entropy_coef_min, self.entropy_coef_max
        if self.entropy_target is None and (step, low, high) != (0.005, 0.0, 1.0):
            raise ValueError("`entropy_coef_delta`, `_min` and `_max` do nothing without `entropy_target`")
        if self.entropy_target is not None and not low <= self.entropy_coef <= high:
            raise ValueError("`entropy_coef` is not from `entropy_coef_min` to `entropy_coef_max`, where it begins")
        return self

    @model_validator(mode="after")
    def _forces(self) -> Self:
        if self.routing_replay and self.environment:
            raise ValueError("`routing_replay` does not know the experts of what an `environment` says")
        return self

    @model_validator(mode="after")
    def _refers(self) -> Self:
        if self.ref_model is not None and not self.beta:
            raise ValueError("`ref_model` does nothing where `beta` is 0")
        if self.kl_estimator != type(self).model_fields["kl_estimator"].default and not self.beta:
            raise ValueError("`kl_estimator` does nothing where `beta` is 0")
        if self.kl_target is not None and not (self.beta and self.kl_estimator == "k1_in_reward"):
            raise ValueError(
                "`kl_target` adapts a `beta` above 0 that counts in the reward: `kl_estimator: k1_in_reward`"
            )
        if self.kl_horizon != type(self).model_fields["kl_horizon"].default and self.kl_target is None:
            raise ValueError("`kl_horizon` does nothing without `kl_target`")
        if self.ref_model_sync_steps is not None and not self.beta:
            raise ValueError("`ref_model_sync_steps` does nothing where `beta` is 0")
        check_mixture(self.ref_model_sync_steps, self.ref_model_mixup_alpha)
        return self

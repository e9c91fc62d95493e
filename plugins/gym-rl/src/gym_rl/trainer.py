"""The trainer of gym-torch, with steps that come from rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import cast

from torch import Tensor

from gym_core import Artifact, RecipeError, Run
from gym_data.tokenizer import Tokenizer
from gym_rewards.reward_manager import RewardManager
from gym_rewards.reward_names import named
from gym_rl.config import PolicyGradient
from gym_rl.objective import PolicyObjective
from gym_rl.rollout_engine import Sampler
from gym_rl.rollout_log.files import HELD_OUT, TRAINING, RolloutLog
from gym_rl.rollout_log.samples import samples
from gym_rl.rollouts import mismatch
from gym_rl.rollouts.evaluation import RewardEvaluation, evaluation_options
from gym_rl.rollouts.experience import Experience, Rollout
from gym_rl.rollouts.generation import RolloutGenerator
from gym_rl.rollouts.log_probs import Batches, Pass, scored
from gym_rl.rollouts.source import Rollouts, Shares
from gym_rl.rollouts.top_p_sets import with_top_p_sets
from gym_torch.console import say, warn
from gym_torch.distributed.strategies import FSDP
from gym_torch.loop.job import Evaluation
from gym_torch.model.expert_routing import Routers
from gym_torch.model.loading import LoadedModel
from gym_torch.packing import Layout
from gym_torch.reference import Scorer, reference
from gym_torch.source import Examples, Source
from gym_torch.trainer import Trainer


class RolloutTrainer(Trainer):
    """Trains on answers of its own."""

    def __init__(self, config: PolicyGradient, run: Run, model: LoadedModel) -> None:
        """Prepare prompts, rewards and what answers. Raises RecipeError where a step cannot be cut into groups."""
        self.config = config
        self._measured = False  #: whether it was said how far the sampler is from the trainer
        judges = named(config.judges())
        self.judge = RewardManager(judges, config.reward_timeout, config.on_error, config.filter_metric, self._state)
        try:
            super().__init__(config, run, model)
        except BaseException:
            self.judge.close()  # its processes run already
            raise

    def train(self) -> Artifact:
        """Train to the end, and end what answered and judged."""
        try:
            made = super().train()
            self._tell_failures()
            return made
        finally:
            self.sampler.close()
            self.judge.close()

    def source(self, layout: Layout) -> Source:
        """Return the rollouts."""
        train, config = self.train_options, self.config
        if isinstance(self.run.recipe.distributed, FSDP) and self.accelerator.num_processes > 1:
            raise RecipeError(
                "answers are sampled from whole models, and this strategy cuts them",
                key="distributed",
                fix="set `distributed: ddp`",
            )
        generator = self._asking(config, self.data.train)
        self.rollouts = Rollouts(
            generator, train, layout, self.data.fingerprint, self.score, self._keep_round, self.sampled
        )
        return self.rollouts

    def evaluation(self, examples: Examples, layout: Layout) -> Evaluation:
        """Return what answers the held-out prompts and has the answers judged."""
        return RewardEvaluation(
            self._asking(evaluation_options(self.config), examples), partial(self._keep_held_out, examples)
        )

    def _asking(self, config: PolicyGradient, prompts: Examples) -> RolloutGenerator:
        return RolloutGenerator(config, prompts, self.sampler, self.words, self.judge, self.train_options.seed)

    def _state(self) -> dict[str, float]:
        """Return how far training is, as rewards are told."""
        source = self.rollouts
        return {
            "global_step": source.first_step,
            "max_steps": source.total,
            "epoch": source.first_prompt / len(source.prompts),
        }

    def _tell_failures(self) -> None:
        for name, count in self.rollouts.failures.items():
            if count:
                warn(f"reward `{name}` failed on {count:,} answers of this run, which were not learnt from")

    @cached_property
    def words(self) -> Tokenizer:
        """The tokenizer of the model."""
        return Tokenizer(self.model.path)

    @cached_property
    def sampler(self) -> Sampler:
        """What answers."""
        built: Sampler = self.config.rollouts.build(
            adapted=self.adapted,
            words=self.words,
            path=self.model.path,
            precision=self.model.precision,
            output=self.run.output,
            ranks=self.run.ranks,
            routers=Routers(self.adapted.model) if self.config.routing_replay else None,
        )
        return built

    def _keep_round(self, experience: Experience, steps: tuple[int, int]) -> None:
        """Write the answers of a round down, where its turn has come."""
        number, every = int(experience.number), self.config.log_completions
        if self.accelerator.is_main_process and every and number % every == 0:
            self._rollout_log.write(TRAINING, list(samples(experience, self.data.train, self.words, steps)))

    def _keep_held_out(self, prompts: Examples, experience: Experience, step: int) -> None:
        if self.accelerator.is_main_process and self.config.log_completions:
            self._rollout_log.write(HELD_OUT, list(samples(experience, prompts, self.words, (step, step))))

    @property
    def _rollout_log(self) -> RolloutLog:
        return RolloutLog(self.run.output)

    def passes(self) -> dict[str, Pass]:
        """Return what fills columns of a round before it is learnt from, by their names; asked once, before the first.

        A trainer with more models adds a pass for each. Nothing is computed where there is none.
        """
        config, passes = self.config, dict[str, Pass]()
        if (
            config.num_mini_batches > 1 and not self.sampler.exact
        ):  # else the policy that learns is the one that answered
            passes["old_log_probs"] = Scorer(self.policy)
        if config.beta:
            named = config.ref_model
            score = reference(self.policy, self.adapted, self.model, self.run, named)
            passes["ref_log_probs"] = lambda batch: score(
                replace(batch, experts=None)
            )  # its routers choose for themselves
        return passes

    def score(self, experience: Experience, batches: Batches) -> dict[str, Tensor]:
        """Return the columns that `passes` makes of a round."""
        return self._scored(experience, batches(), self._passes)

    def sampled(self, experience: Experience, shares: Shares) -> Experience:
        """Return answers that were just given with the tokens that could be drawn, where not all could.

        Raises GymError where the first of them were not sampled by the policy that is trained.
        """
        if self.config.top_p < 1.0:
            drawable = partial(self.policy.nucleus, top_p=self.config.top_p)
            collate, device = cast(PolicyObjective, self.objective).collate, self.accelerator.device
            experience = with_top_p_sets(
                experience, shares(experience), collate, drawable, device, self.accelerator.num_processes
            )
        first = self._scored(experience, islice(shares(experience), 1), {"trainer": Scorer(self.policy)})
        found = mismatch.check(
            first["trainer"], experience.columns["sampling_log_probs"], self.config.max_mismatch, self.config.rollouts
        )
        if not self._measured:
            say(f"sampler and trainer differ by {found:.1e} nats a token")
            self._measured = True
        return experience

    def _scored(
        self, experience: Experience, batches: Iterable[Sequence[Rollout]], passes: Mapping[str, Pass]
    ) -> dict[str, Tensor]:
        collate = cast(PolicyObjective, self.objective).collate
        device, world = self.accelerator.device, self.accelerator.num_processes
        return scored(experience, batches, passes, collate, device, world)

    @cached_property
    def _passes(self) -> dict[str, Pass]:
        return self.passes()

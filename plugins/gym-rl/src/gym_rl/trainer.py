"""The trainer of gym-torch, with steps that come from rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import cast

from torch import Tensor

from gym_core import Artifact, RecipeError, Run
from gym_data.tokenizer import Tokenizer
from gym_rl import mismatch
from gym_rl.answers import Rollout, Round
from gym_rl.asking import Asking
from gym_rl.config import PolicyGradient
from gym_rl.judge import Judge, named
from gym_rl.objective import PolicyObjective
from gym_rl.rollouts import Rollouts
from gym_rl.scoring import Batches, Pass, scored
from gym_torch.backend import LoadedModel
from gym_torch.generation.generator import Generator
from gym_torch.layout import Layout
from gym_torch.processes.strategies import FSDP
from gym_torch.reference import Scorer, reference
from gym_torch.source import Source
from gym_torch.trainer import Trainer


class RolloutTrainer(Trainer):
    """Trains on answers of its own."""

    def __init__(self, config: PolicyGradient, run: Run, model: LoadedModel) -> None:
        """Prepare prompts, rewards and what answers. Raises RecipeError where a step cannot be cut into groups."""
        self.config = config
        self.judge = Judge(named(config.rewards), config.reward_timeout, config.on_error)
        super().__init__(config, run, model)

    def train(self) -> Artifact:
        """Train to the end, and end what judged."""
        try:
            return super().train()
        finally:
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
        if self.data.validation:
            raise RecipeError(
                "prompts that are held out are not answered and judged yet",
                key="data.validation",
                fix="leave it out; `metrics.jsonl` has the rewards of training",
            )
        if train.batch_tokens is not None:
            raise RecipeError(
                "a step is counted in answers here, whose tokens nobody knows before",
                key="train.batch_tokens",
                fix="set `train: {batch_size: 16, accumulate: 4}`: answers in a pass, and passes in a step",
            )
        answers = train.batch_size * train.accumulate * config.mini_batches
        if answers % config.group_size:
            raise RecipeError(
                f"{answers} answers in a round do not make groups of {config.group_size}",
                key="train.batch_size",
                fix="batch_size x accumulate x mini_batches must be a multiple of group_size",
            )
        words = Tokenizer(self.model.path)
        generator = Generator(self.adapted.model, words)
        asking = Asking(config, self.data.train, generator, words, self.judge, train.seed, self.exact)
        return Rollouts(asking, train, layout, self.data.fingerprint, self.score)

    def passes(self) -> dict[str, Pass]:
        """Return what fills columns of a round before it is learnt from, by their names; asked once, before the first.

        A trainer with more models adds a pass for each. Nothing is computed where there is none.
        """
        config, passes = self.config, dict[str, Pass]()
        if not self.exact and config.mini_batches > 1:  # with one, the policy that learns is the one that answered
            passes["old"] = Scorer(self.policy)
        if config.beta:
            named = config.reference_model
            passes["reference"] = reference(self.policy, self.adapted, self.model, self.run.recipe, named)
        return passes

    def score(self, round_: Round, batches: Batches) -> dict[str, Tensor]:
        """Return the columns that `passes` makes of a round.

        Raises GymError where the first answers of a run were not sampled by the policy that is trained.
        """
        if not int(round_.number):
            first = self._scored(round_, islice(batches(), 1), {"trainer": Scorer(self.policy)})
            mismatch.check(first["trainer"], round_.columns["sampled"], self.config.max_mismatch)
        return self._scored(round_, batches(), self._passes)

    @property
    def exact(self) -> bool:
        """Whether what is sampled comes with the log-probabilities of the trainer, to rounding."""
        return self.model.precision == "fp32"

    def _scored(
        self, round_: Round, batches: Iterable[Sequence[Rollout]], passes: Mapping[str, Pass]
    ) -> dict[str, Tensor]:
        collate = cast(PolicyObjective, self.job.objective).collate
        device, world = self.accelerator.device, self.accelerator.num_processes
        return scored(round_, batches, passes, collate, device, world)

    @cached_property
    def _passes(self) -> dict[str, Pass]:
        return self.passes()

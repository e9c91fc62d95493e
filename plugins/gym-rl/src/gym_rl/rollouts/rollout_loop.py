"""The rollout loop: prompts to groups of completions, to rewards, to advantages, to mini-batches, round after round.

Round `k` is a function of the recipe and of the weights when it begins: which prompts it takes, and the random numbers of every
completion. With dynamic sampling, which samples until it has enough groups, it is a function of all rounds before, too. A
checkpoint in the middle of a round holds its completions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gym_core import Train
from gym_core.component import load_object
from gym_rl.formulas import entropy
from gym_rl.formulas.kl import adapted_coefficient
from gym_rl.rollouts.compute_advantages import Credit, completion_kl
from gym_rl.rollouts.dynamic_sampling import DynamicSample, dynamic_sample, in_loss
from gym_rl.rollouts.experience import ENTROPY_COEF, Experience, Rollout
from gym_rl.rollouts.generate_and_score import RolloutGenerator
from gym_rl.rollouts.high_entropy import choose_high_entropy
from gym_rl.rollouts.log_probs import Scoring
from gym_rl.rollouts.metrics import rollout_metrics
from gym_rl.rollouts.mini_batches import MiniBatches, prompts_in
from gym_rl.rollouts.prompt import Prompt
from gym_torch.packing import Ints, Layout
from gym_torch.source import Dataset, Source, Step

Shares = Callable[[Experience], Iterator[Sequence[Rollout]]]
"""From a round to this process's batches of it, each completion in one batch of one process."""
CARRIED_OVER = "carried over "  #: how the names of tensors begin that belong to the next round


class Rollouts(Source):
    """The optimizer steps of a run, over completions that the policy samples."""

    def __init__(
        self,
        generator: RolloutGenerator,
        train: Train,
        layout: Layout,
        fingerprint: str = "",
        scoring: Scoring = lambda experience, batches: {},
        keep: Callable[[Experience, tuple[int, int]], None] = lambda experience, steps: None,
        sampled: Callable[[Experience, Shares], Experience] = lambda experience, shares: experience,
    ) -> None:
        """Plan the whole run.

        `fingerprint` names the prompts, `scoring` adds columns to the completions of a round, `keep` is told of each finished
        round before it is trained on, and in which steps it is: the first and the last. `sampled` gets completions as soon as
        they are there, while the policy is still the one that gave them, and returns them with what is known of them then.
        """
        config = generator.config
        self.generator, self.config, self.prompts = generator, config, generator.prompts
        self.scoring, self.keep, self.sampled = scoring, keep, sampled
        self.mini_batches = MiniBatches(config, self.prompts, train, layout)
        self.train, self.fingerprint, self.layout = train, fingerprint, layout
        self.order = self._rounds()
        self.first_steps = self._first_steps()
        self.total = train.max_steps or int(self.first_steps[-1])
        self.credit: Credit = load_object(type(config).credit)
        self.experience: Experience | None = None
        self.beta = config.beta  #: KL coefficient of the next round
        self.entropy_coef = config.entropy_coef  #: entropy coefficient of the next round
        self.carried_over: tuple[Experience, ...] = ()  #: groups too many, for the next round
        self.first_step = 0  #: step at which the round under way begins
        self.first_prompt = self.next_prompt = 0  #: prompts asked before the round under way, and up to its end
        self.metrics: dict[str, float] = {}  #: of the round, logged with each of its steps
        self.failures: dict[str, int] = {}  #: by reward, completions of the whole run that it failed on

    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step]:
        """Yield the steps from number `start` on; where a round begins, its completions are sampled first."""
        for step in range(start, self.total):
            number = int(np.searchsorted(self.first_steps, step, side="right")) - 1
            first, end = map(int, self.first_steps[number : number + 2])
            part = step - first
            if self.experience is None or int(self.experience.number) != number:
                self.experience, self.metrics = self._round(number, rank, world)
                self.keep(self.experience, (first + 1, min(end, self.total)))
            made = self.mini_batches.step(self.experience, part, (self.first_prompt, self.next_prompt), rank, world)
            only_beside = self.config.only_beside(number)
            yield replace(made, metrics={**self.metrics, **made.metrics}, only_beside=only_beside)

    def extend(self, state: Mapping[str, Any], step: int) -> None:
        """Go on behind the last prompt of a shorter plan that was carried out, whose last round the data may have cut short."""
        carried_out = step == state.get("total")
        # for those cut short, which have fewer steps
        self.order = self._rounds(len(state.get("ended", ())) + carried_out)
        self.order.extend(state, state["steps"] if carried_out else -1)
        self.first_steps = self._first_steps()
        self.total = self.train.max_steps or int(self.first_steps[-1])

    def state_dict(self) -> dict[str, Any]:
        """Return what names the prompts and their order, how far they were asked, and how the round under way went."""
        plan = {**self.order.state_dict(), "total": self.total, "asked": [self.first_prompt, self.next_prompt]}
        return {**plan, "metrics": self.metrics, "failures": self.failures, **self._coefficients()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the round that is under way, and what is carried over to the next."""
        rounds = {"": (self.experience,) if self.experience else (), CARRIED_OVER: self.carried_over}
        return {
            at + name: value for at, some in rounds.items() for each in some for name, value in each.tensors().items()
        }

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take the round up again. Raises DataError when the prompts are others."""
        self.order.load_state_dict(state, {})
        later = {
            name.removeprefix(CARRIED_OVER): value for name, value in tensors.items() if name.startswith(CARRIED_OVER)
        }
        now = {name: value for name, value in tensors.items() if not name.startswith(CARRIED_OVER)}
        self.experience = Experience.from_tensors(now) if now else None
        self.carried_over = (Experience.from_tensors(later),) if later else ()
        self.first_prompt, self.next_prompt = state["asked"]
        self.metrics, self.failures = dict(state["metrics"]), dict(state["failures"])
        self.beta, self.entropy_coef = state["beta"], state["entropy_coef"]

    def _coefficients(self) -> dict[str, float]:
        return {"beta": self.beta, "entropy_coef": self.entropy_coef}

    def _rounds(self, more: int = 0) -> Dataset[Prompt]:
        """Return the prompts of each round in order; with `max_steps` that many `more` rounds than are needed for whole ones."""
        train, config = self.train, self.config
        steps = config.num_mini_batches * config.num_iterations
        rounds = math.ceil(train.max_steps / steps) + more if train.max_steps else None
        schedule = {"batch_size": prompts_in(train, config), "accumulate": 1, "max_steps": rounds}
        return Dataset(self.prompts, train.model_copy(update=schedule), self.fingerprint, self.layout)

    def _first_steps(self) -> Ints:
        """Return the first step of each round, and the end, `[rounds + 1]`: a round has fewer steps where the data end."""
        completions = np.diff(self.order.bounds) * self.config.group_size
        return np.cumsum([0, *-(-completions // self.mini_batches.size) * self.config.num_iterations])

    def _round(self, number: int, rank: int, world: int) -> tuple[Experience, dict[str, float]]:
        """Return a round and what is logged of it, stage after stage; each gets what the one before made, and adds to it."""
        self.first_step = int(self.first_steps[number])
        self.generator.engine.refresh()
        drawn = self._drawn(number, rank, world)
        judged, self.carried_over = drawn.experience, drawn.carried_over
        scored = judged.with_columns(self.scoring(judged, lambda: self.mini_batches.own_share(judged, rank, world)))
        adapted = self.config.model_copy(update={"beta": self.beta})
        made = scored.with_columns(self.credit(scored, adapted))
        counted = in_loss(made, self.config)[made.owner]
        made = made.with_columns({"advantages": made.columns["advantages"].masked_fill(~counted, 0.0)})
        said = rollout_metrics(made) | drawn.metrics | self._adapt(made)
        bonus = self._bonus(said["entropy"])
        if bonus:
            made = made.with_columns({ENTROPY_COEF: torch.full((len(made.tokens),), bonus)})
        said |= {} if self.config.entropy_target is None else {ENTROPY_COEF: bonus}
        return choose_high_entropy(made, counted, self.config.top_entropy_quantile), said

    def _adapt(self, made: Experience) -> dict[str, float]:
        """Adapt the KL coefficient to a round, for the next one; return what is logged: the one that the round had."""
        config, used = self.config, self.beta
        if config.kl_target is None:
            return {}
        away = completion_kl(made)
        kl = float(away[~away.isnan()].mean())
        self.beta = adapted_coefficient(used, kl, config.kl_target, len(made.lengths), config.kl_horizon)
        return {"kl_coef": used}

    def _bonus(self, found: float) -> float:
        """Return what the entropy bonus counts in a round of this entropy, and adapt it for the next one."""
        config, used = self.config, self.entropy_coef
        if config.entropy_target is None:
            return used
        bounds = config.entropy_coef_delta, config.entropy_coef_min, config.entropy_coef_max
        self.entropy_coef = entropy.adapted_coefficient(used, found, config.entropy_target, *bounds)
        return entropy.active_coefficient(used, found, config.entropy_target)

    def _drawn(self, number: int, rank: int, world: int) -> DynamicSample:
        """Return the completions to the prompts whose turn it is, scored, and those to others in place of what teaches
        nothing.
        """
        first, end = map(int, self.order.bounds[number : number + 2])
        again = self.config.max_resample
        self.first_prompt = self.next_prompt = self.next_prompt if again else first

        def ask(count: int) -> Experience:
            places = range(self.next_prompt, self.next_prompt + count)
            self.next_prompt = places.stop
            asked = np.repeat(self.order.samples(places.start, places.stop), self.config.group_size)
            streams = range(places.start * self.config.group_size, places.stop * self.config.group_size)
            found = self.generator(number, asked, streams)
            for name, where in found.failed.items():
                self.failures[name] = self.failures.get(name, 0) + int(where.sum())
            return self.sampled(found, lambda experience: self.mini_batches.own_share(experience, rank, world))

        if not again:
            return DynamicSample(ask(end - first), {})
        return dynamic_sample(number, end - first, 1 + again, self.carried_over, ask)

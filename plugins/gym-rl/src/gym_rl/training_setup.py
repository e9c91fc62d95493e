"""What learning from rewards contributes to a run: rollouts as the source of steps, rewards on held-out prompts as evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from torch import Tensor

from gym_core import Artifact, RecipeError
from gym_data.kinds import Data
from gym_data.tokenizer import Tokenizer
from gym_rewards.reward_manager import RewardManager
from gym_rewards.reward_names import named
from gym_rl.config.base import PolicyGradient
from gym_rl.environment import KEY, Episodes
from gym_rl.objective import PolicyObjective
from gym_rl.policy import Entropies
from gym_rl.rollout_engine import RolloutEngine
from gym_rl.rollout_log.files import HELD_OUT, TRAINING, RolloutLog
from gym_rl.rollout_log.from_experience import samples
from gym_rl.rollouts import mismatch_check, position_check
from gym_rl.rollouts.evaluation import RewardEvaluation, evaluation_options
from gym_rl.rollouts.experience import Experience, Rollout
from gym_rl.rollouts.generate_and_score import RolloutGenerator
from gym_rl.rollouts.high_entropy import ENTROPIES
from gym_rl.rollouts.log_probs import Batches, Pass, scored
from gym_rl.rollouts.multi_turn import MultiTurn
from gym_rl.rollouts.prompt import Prompt
from gym_rl.rollouts.rollout_loop import Rollouts, Shares
from gym_rl.rollouts.top_p_mask import with_top_p_sets
from gym_torch.console import say, warn
from gym_torch.contract_checks import promised
from gym_torch.contribution import Contribution, Parts
from gym_torch.distributed.strategies import shards
from gym_torch.following_reference import followed
from gym_torch.kinds import part
from gym_torch.model.expert_routing import Routers
from gym_torch.observer import Observer, Progress
from gym_torch.policy import Policy
from gym_torch.reference import Scorer
from gym_torch.source import Examples

RLParts = Parts[PolicyGradient, PolicyObjective, Policy[Any], Prompt]


def rollouts(parts: RLParts) -> Contribution:
    """Return the rollouts of a policy without further models but a reference."""
    return scored_rollouts(parts, {})


def scored_rollouts(parts: Parts[Any, Any, Any, Prompt], more: Mapping[str, Pass]) -> Contribution:
    """Return rollouts whose rounds have further columns: `more` fills each, by its name, before a round is trained on.

    Raises RecipeError where a step cannot be cut into groups, where no process has a whole model to sample from, or where that
    has too few positions.
    """
    config, tokenizer = parts.config, Tokenizer(parts.model.path)
    if shards(parts.run.recipe):
        raise RecipeError(
            "completions are sampled from whole models, and this strategy cuts them",
            key="distributed",
            fix="set `distributed: ddp`",
        )
    longest = max(int(each.lengths.max()) for each in (parts.data.train, parts.data.validation) if each)
    position_check.check(parts.adapted.model, longest, config.max_new_tokens)

    def state() -> dict[str, float]:
        """Return how far training is, as rewards are told."""
        epoch = source.first_prompt / len(source.prompts)
        return {"global_step": source.first_step, "max_steps": source.total, "epoch": epoch}

    if config.full_kl:
        (parts.policy.reference,) = parts.references
    with ExitStack() as stack:  # what runs already ends here where anything fails, else with the run
        judged = named(config.judges())
        rewards = RewardManager(judged, config.reward_timeout, config.on_error, config.filter_metric, state)
        stack.enter_context(closing(rewards))
        engine = stack.enter_context(closing(build_engine(parts, tokenizer)))
        log, seed = CompletionLog(parts, tokenizer), parts.train.seed
        processes = int(parts.accelerator.process_index), int(parts.accelerator.num_processes)
        multi_turn = build_environment(parts, tokenizer)
        generator = RolloutGenerator(config, parts.data.train, engine, tokenizer, rewards, seed, *processes, multi_turn)
        scores = RoundScores(parts, {**passes(parts, engine), **more})
        fingerprint = parts.data.fingerprint
        stages = scores.columns, log.round, scores.sampled
        source = Rollouts(generator, parts.train, parts.layout, fingerprint, *stages)
        evaluation, held_out = None, parts.data.validation
        if held_out:
            asked = evaluation_options(config), held_out
            generator = RolloutGenerator(
                *asked, engine, tokenizer, rewards, seed, *processes, multi_turn, baselines=False
            )
            evaluation = RewardEvaluation(generator, partial(log.held_out, held_out))
        resources = [stack.pop_all()]
    return Contribution(parts.objective, followed(parts, source), evaluation, [FailedRewards(source)], resources)


def build_engine(parts: RLParts, tokenizer: Tokenizer) -> RolloutEngine:
    """Return what samples completions, as the recipe names it. Raises PluginError where it builds something else."""
    config, adapted = parts.config, parts.adapted
    built = config.rollouts.build(
        adapted=adapted,
        tokenizer=tokenizer,
        path=parts.model.path,
        precision=parts.model.precision,
        output=parts.run.output,
        ranks=parts.run.ranks,
        routers=Routers(adapted.model) if config.routing_replay else None,
    )
    return promised(built, RolloutEngine, config.rollouts, "algorithm.rollouts")  # type: ignore[type-abstract]


def build_environment(parts: RLParts, tokenizer: Tokenizer) -> MultiTurn | None:
    """Return what has the environment of a recipe answer. Raises PluginError where it builds something else."""
    environment, data = parts.config.environment, part(parts.run.recipe, Data)
    if environment is None:
        return None
    episodes = promised(environment.build(), Episodes, environment, KEY)  # type: ignore[type-abstract]
    chats = data.tokenizer(parts.model.path) if data else None  # with the template that prompts were written by
    return MultiTurn(environment, episodes, chats or tokenizer)


def passes(parts: RLParts, engine: RolloutEngine) -> dict[str, Pass]:
    """Return what fills columns of a round before it is trained on, by their names. Nothing is computed where there is none."""
    found = dict[str, Pass]()
    steps = parts.config.num_mini_batches * parts.config.num_iterations
    if steps > 1 and not engine.exact:  # else the policy that learns is the one that sampled
        found["old_log_probs"] = Scorer(parts.policy)
    if parts.config.top_entropy_quantile < 1.0:
        found[ENTROPIES] = Entropies(parts.policy)
    for score in () if parts.config.full_kl else parts.references:
        found["ref_log_probs"] = reference_pass(score)
    return found


def reference_pass(score: Callable[[Any], Tensor]) -> Pass:
    """Have a reference score a batch: its routers choose for themselves."""
    return lambda batch: score(replace(batch, experts=None))


class RoundScores:
    """What models say of a round: whether its sampler is the policy that is trained, and the columns of `passes`."""

    def __init__(self, parts: RLParts, passes: Mapping[str, Pass]) -> None:
        """Take the models; nothing is asked yet."""
        self.parts, self.config, self.passes = parts, parts.config, passes
        self.told = False  #: whether it was said how far the sampler is from the trainer

    def columns(self, experience: Experience, batches: Batches) -> dict[str, Tensor]:
        """Return the columns that `passes` makes of a round."""
        return self._scored(experience, batches(), self.passes)

    def sampled(self, experience: Experience, shares: Shares) -> Experience:
        """Return completions that were just given with the tokens that could be drawn, where not all could.

        Raises GymError where the first of them were not sampled by the policy that is trained.
        """
        parts, config = self.parts, self.config
        if config.top_p < 1.0 or config.top_k or config.min_p:
            drawable = partial(parts.policy.nucleus, **config.truncation())
            collate, device = parts.objective.collate, parts.accelerator.device
            experience = with_top_p_sets(experience, shares(experience), collate, drawable, device, parts.world)
        first = self._scored(experience, islice(shares(experience), 1), {"trainer": Scorer(parts.policy)})
        found = mismatch_check.check(
            first["trainer"], experience.columns["sampling_log_probs"], config.max_mismatch, config.rollouts
        )
        if not self.told:
            say(f"sampler and trainer differ by {found:.1e} nats a token")
            self.told = True
        return experience

    def _scored(
        self, experience: Experience, batches: Iterable[Sequence[Rollout]], passes: Mapping[str, Pass]
    ) -> dict[str, Tensor]:
        parts = self.parts
        return scored(experience, batches, passes, parts.objective.collate, parts.accelerator.device, parts.world)


@dataclass(frozen=True)
class CompletionLog:
    """Writes completions down, in the main process, where the recipe wants that."""

    parts: RLParts
    tokenizer: Tokenizer

    def round(self, experience: Experience, steps: tuple[int, int]) -> None:
        """Write those of a round, where its turn has come."""
        every = self.parts.config.log_completions
        if self.parts.accelerator.is_main_process and every and int(experience.number) % every == 0:
            self._write(TRAINING, experience, self.parts.data.train, steps)

    def held_out(self, prompts: Examples, experience: Experience, step: int) -> None:
        """Write those to held-out prompts."""
        if self.parts.accelerator.is_main_process and self.parts.config.log_completions:
            self._write(HELD_OUT, experience, prompts, (step, step))

    def _write(self, kind: str, experience: Experience, prompts: Examples, steps: tuple[int, int]) -> None:
        RolloutLog(self.parts.run.output).write(kind, list(samples(experience, prompts, self.tokenizer, steps)))


class FailedRewards(Observer):
    """Says at the end which rewards failed, and how often."""

    def __init__(self, source: Rollouts) -> None:
        """Take what counts them."""
        self.source = source

    def ended(self, progress: Progress, artifact: Artifact) -> None:
        """Say it."""
        for name, count in self.source.failures.items():
            if count:
                warn(f"reward `{name}` failed on {count:,} completions of this run, which were not trained on")

"""The first stage of a round: completions are sampled, each process its share, and scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from accelerate.utils import gather_object

from gym_core import GymError
from gym_data.tokenizer import Tokenizer
from gym_rewards.reward import RewardInput
from gym_rewards.reward_manager import RewardResult
from gym_rewards.reward_names import called
from gym_rl.config.base import PolicyGradient
from gym_rl.rollout_engine import RolloutEngine, RolloutRequest
from gym_rl.rollouts.engine_output_check import check
from gym_rl.rollouts.experience import Experience
from gym_rl.rollouts.greedy_baseline import split_baselines
from gym_rl.rollouts.multi_turn import MultiTurn
from gym_rl.rollouts.prompt import Prompt
from gym_rl.rollouts.routing_replay import recorded_experts
from gym_rl.rollouts.trajectory import Trajectory, observations_of
from gym_torch.console import warn
from gym_torch.generation.row import Completion
from gym_torch.generation.stop_strings import StopStrings
from gym_torch.inputs_beside import inputs_of
from gym_torch.packing import Ints
from gym_torch.source import Examples


@dataclass(frozen=True)
class RolloutGenerator:
    """Samples completions and scores them."""

    config: PolicyGradient
    prompts: Examples[Prompt]
    engine: RolloutEngine  #: generates with the weights that it was told of last
    tokenizer: Tokenizer
    judge: Callable[[Sequence[RewardInput]], RewardResult]
    seed: int = 0
    process: int = 0  #: number of this process: each samples its share of the completions
    processes: int = 1
    multi_turn: MultiTurn | None = None  #: has an environment answer, where the recipe names one
    baselines: bool = True  #: whether greedy completions are asked for beside, where the algorithm compares with them
    told: set[str] = field(default_factory=set)  #: rewards of which it was said that they failed, or say nothing

    def __call__(self, number: int, asked: Ints, streams: Sequence[int]) -> Experience:
        """Return the completions of round `number`, scored, the same in every process; each process gives its share.

        Args:
            number: of the round, from 0.
            asked: indices of the prompts, `[completions]`; `group_size` equal ones in a row are a group.
            streams: of the random numbers of each completion, `[completions]`.

        """
        size = self.config.group_size
        mine = [place for place in range(len(asked)) if place // size % self.processes == self.process]
        drawn = {number: self.prompts[number] for number in {int(asked[place]) for place in mine}}
        prompts = [drawn[int(asked[place])] for place in mine]  # equal ones are one
        made = self._sampled(prompts, [streams[place] for place in mine])
        once = prompts[::size] if self.baselines and self.config.greedy_baseline else []
        greedy = self._sampled(once, range(len(once)), greedy=True) if once else []
        judged = self.judge([self._read(*pair) for pair in zip([*prompts, *once], [*made, *greedy], strict=True)])
        judged, bases = split_baselines(judged, len(mine), size) if once else (judged, [None] * len(mine))
        compared = judged.totals if judged.compared is None else judged.compared
        said = [_Verdict.of(judged, number) for number in range(len(mine))]
        found, reasons = list(zip(mine, made, judged.totals, compared, said, bases, strict=True)), [judged.reasons]
        if self.processes > 1:
            found = sorted(gather_object(found), key=lambda answer: answer[0])
            reasons = gather_object(reasons)
        _, every, totals, apart, verdicts, against = zip(*found, strict=True)
        tables = _Verdict.tables(verdicts)
        if self.config.on_error == "stop":
            tables.pop("failed")  # a failure would have ended the run
        self._tell(tables.get("failed", {}), {name: why for each in reasons for name, why in each.items()})
        self._tell_silent(tables["scores"])
        answers = [one.completion for one in every]
        experts, prompt_experts = recorded_experts(answers, size) if self.config.routing_replay else (None, None)
        sampled = torch.tensor([value for answer in answers for value in answer.log_probs], dtype=torch.float32)
        between, observations = observations_of(every)
        return Experience(
            number=torch.tensor(number),
            groups=torch.arange(len(asked)) // size,
            prompts=torch.from_numpy(asked.astype("int64")),
            lengths=torch.tensor([len(answer.tokens) for answer in answers]),
            tokens=torch.tensor([token for answer in answers for token in answer.tokens], dtype=torch.int32),
            finished=torch.tensor([answer.finished for answer in answers]),
            stopped=torch.tensor([answer.stop is not None for answer in answers]) if self.config.stop else None,
            rewards=_numbers(totals),
            compared=_numbers(apart),
            baselines=_numbers(against) if self.baselines and self.config.greedy_baseline else None,
            **tables,
            environment=_logged(every),
            columns={
                "sampling_log_probs": sampled,
                **({"old_log_probs": sampled.clone()} if self.engine.exact else {}),
                **({"experts": experts} if experts is not None else {}),
                **({"observation_size": between} if self.multi_turn else {}),
            },
            observations=observations if self.multi_turn else None,
            prompt_experts=prompt_experts,
        )

    def _sampled(self, prompts: Sequence[Prompt], streams: Sequence[int], greedy: bool = False) -> list[Trajectory]:
        config = self.config
        texts = [prompt.tokens.tolist() for prompt in prompts]
        asked = RolloutRequest(texts, config.max_new_tokens, streams=streams, stop=config.stop)
        if any(key for _, key in map(inputs_of, prompts)):
            asked = with_inputs(asked, prompts)
        if not greedy:
            asked = replace(asked, temperature=config.temperature, seed=self.seed, **config.truncation())
        if self.multi_turn:
            return self.multi_turn(prompts, asked, self._generate)
        made = self._generate(asked, [prompt.id for prompt in prompts])
        return [Trajectory(each, self.tokenizer.decode(each.said)) for each in made]

    def _generate(self, request: RolloutRequest, rows: Sequence[str]) -> list[Completion]:
        made = self.engine.generate(request)
        stop = StopStrings(request.stop, self.tokenizer.decode) if request.stop else None
        check(made, rows, request.max_new_tokens, called(self.config.rollouts), stop)
        return made

    def _read(self, prompt: Prompt, made: Trajectory) -> RewardInput:
        own = made.completion
        return RewardInput(
            made.text,
            prompt.row,
            prompt.messages,
            prompt.id,
            len(own.tokens),
            own.finished,
            own.tokens,
            made.turns,
            made.reward,
        )

    def _tell(self, failed: Mapping[str, torch.Tensor], reasons: Mapping[str, str]) -> None:
        """Say once of each reward that it failed. Raises GymError where it did on every completion: it is broken."""
        for name, where in failed.items():
            if where.all():
                raise GymError(
                    f"{reasons[name]}, and failed on each of {len(where)} completions",
                    key="algorithm.rewards",
                    fix="correct the reward: `on_error: mask` leaves some completions out, not all",
                )
            if where.any() and name not in self.told:
                self.told.add(name)
                warn(f"{reasons[name]}; such completions are not trained on")

    def _tell_silent(self, scores: Mapping[str, torch.Tensor]) -> None:
        """Say once of each reward that it said nothing of any completion of a round."""
        for name, said in scores.items():
            if said.isnan().all() and name not in self.told:
                self.told.add(name)
                warn(f"reward `{name}` says nothing of any of {len(said)} completions: it counts for nothing there")


def with_inputs(asked: RolloutRequest, prompts: Sequence[Prompt]) -> RolloutRequest:
    """Return the request with what the model is given beside the tokens of these prompts; a token of that ends an answer."""
    inputs = [each if key else None for each, key in map(inputs_of, prompts)]
    ends = {token for each in prompts for token in each.input_tokens}
    return replace(asked, inputs=inputs, ends=sorted(ends))


@dataclass(frozen=True)
class _Verdict:
    """What the rewards say about one completion, by their names."""

    scores: dict[str, float | None]
    failed: dict[str, bool]
    metrics: dict[str, float]

    @classmethod
    def of(cls, judged: RewardResult, number: int) -> _Verdict:
        """Return that of the completion of this number."""
        return cls(
            {name: scores[number] for name, scores in judged.scores.items()},
            {name: number in places for name, places in judged.failed.items()},
            dict(judged.metrics),
        )

    @staticmethod
    def tables(verdicts: Sequence[_Verdict]) -> dict[str, dict[str, torch.Tensor]]:
        """Return them as tables of a round."""
        first = verdicts[0]
        logged = sorted({name for one in verdicts for name in one.metrics})
        return {
            "scores": {name: _numbers([one.scores[name] for one in verdicts]) for name in first.scores},
            "failed": {name: torch.tensor([one.failed[name] for one in verdicts]) for name in first.failed},
            "metrics": {name: _numbers([one.metrics.get(name) for one in verdicts]) for name in logged},
        }


def _logged(trajectories: Sequence[Trajectory]) -> dict[str, torch.Tensor]:
    """Return what an environment had logged, by name, `[completions]`."""
    names = sorted({name for one in trajectories for name in one.metrics})
    return {name: _numbers([one.metrics.get(name) for one in trajectories]) for name in names}


def _numbers(values: Sequence[float | None]) -> torch.Tensor:
    """Return `[completions]` fp64, NaN for None."""
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)

"""Completions of several turns: the model writes, the environment answers, until an episode ends or no room is left.

What the model is shown of the environment stands between the tokens that it sampled, and is not trained on. The model goes on
from the very tokens that were there; none is rendered or encoded again, so a token is trained on after what it was sampled after.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any

from gym_core import DataError, GymError
from gym_data.chat.answer_format import answer_format_of
from gym_data.chat.channel_parser import parser_of
from gym_data.next_turn import NextTurn
from gym_data.tokenizer import Tokenizer
from gym_rewards.reward import CALLED
from gym_rl.environment import KEY, Action, Call, Environment, Episode, Episodes, StepResult
from gym_rl.rollout_engine import RolloutRequest
from gym_rl.rollouts.open_episodes import OpenEpisodes
from gym_rl.rollouts.prompt import Prompt
from gym_rl.rollouts.side_by_side import Item, Made, TookTooLongError, side_by_side
from gym_rl.rollouts.step_result_check import checked
from gym_rl.rollouts.trajectory import Trajectory
from gym_torch.console import warn
from gym_torch.contract_checks import promised
from gym_torch.generation.row import Completion

TURN = 1 << 40  #: by which the streams of random numbers of two turns differ: more than there are completions
FIX = "return a `gym_rl.StepResult` with a list of messages, or none, and a number"
DIGITS = 12  #: of a reward that count
THREADS = 16  #: episodes that are begun or stepped at once
TAIL = 32  #: tokens before a turn in which it is seen whether a thought has begun

Generate = Callable[[RolloutRequest, Sequence[str]], list[Completion]]
"""From a request and the names of its rows to completions."""


@dataclass
class _Player:
    """One episode under way."""

    prompt: Prompt
    tokens: Sequence[int]  #: of the prompt
    stream: int
    episode: Episode
    trajectory: Trajectory = field(default_factory=lambda: Trajectory(reward=0.0))
    pending: list[int] = field(default_factory=list)  #: what the next turn is shown
    earned: list[float] = field(default_factory=list)  #: turn after turn
    thinks: bool = False  #: whether what stands before the turn has begun a thought already
    going: bool = True

    @property
    def id(self) -> str:
        """Row of the prompt."""
        return self.prompt.id

    def room(self, most: int) -> int:
        """Return how many tokens of `most` are left."""
        return most - self.trajectory.size - len(self.pending)


def total(earned: Sequence[float]) -> float:
    """Return the sum of rewards, to `DIGITS` of the largest: however they are dealt out over turns, the same is the same.

    What differs by rounding would be learnt from, and a group of such completions would teach something.
    """
    largest = max(map(abs, earned), default=0.0)
    return round(math.fsum(earned), DIGITS - math.floor(math.log10(largest))) if largest else 0.0


def _told(call: Call) -> dict[str, Any]:
    """Return a call as messages hold it; its arguments are an object where the model wrote one."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = call.arguments
    return {"type": "function", "function": {"name": call.name, "arguments": arguments}}


class MultiTurn:
    """Has an environment answer what an engine writes."""

    def __init__(self, environment: Environment, episodes: Episodes, tokenizer: Tokenizer) -> None:
        """Take what begins episodes.

        Raises DataError where the model has no chat template, or one whose calls are not known, and there is something to call.
        """
        self.environment, self.episodes, self.tokenizer = environment, episodes, tokenizer
        self.next_turn, self.format = NextTurn(tokenizer), answer_format_of(tokenizer)
        if self.format.calls is None and environment.tools():
            raise DataError(
                "the chat template writes no tool calls, or in a form that is not known: none of the model would be read",
                where=str(tokenizer.path),
                key="data.template",
                fix="use the model's own template, or `template: qwen`",
            )

    def __call__(self, prompts: Sequence[Prompt], asked: RolloutRequest, generate: Generate) -> list[Trajectory]:
        """Return a trajectory for each prompt of a request.

        The request says how tokens are drawn, and how many may follow a prompt, those of the environment included. Raises
        GymError with the row where the environment fails.
        """
        held = OpenEpisodes(self._failing, THREADS, self.environment.step_timeout)
        try:
            players = self._played(prompts, asked, generate, held)
        except BaseException:
            if failed := held.end():
                warn(f"an episode could not be closed: {failed}")
            raise
        _raised(held.end())
        return [one.trajectory for one in players]

    def _played(
        self, prompts: Sequence[Prompt], asked: RolloutRequest, generate: Generate, held: OpenEpisodes
    ) -> list[_Player]:
        begun = self._each(partial(self._begun, held), prompts)
        asked = replace(asked, turns={})
        players = [_Player(*each) for each in zip(prompts, asked.prompts, asked.streams, begun, strict=True)]
        for turn in range(self.environment.max_turns):
            going = [one for one in players if one.going]
            if not going:
                break
            self._write(going, asked, turn, generate)
            results = self._each(self._step, going)
            for one, result in zip(going, results, strict=True):
                self._take(one, result, asked.max_new_tokens, turn + 1 == self.environment.max_turns)
            _raised(held.over([one.episode for one in going if not one.going]))
        return players

    def _each(self, call: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        """Return what the environment makes of each. Raises GymError with the row of one that takes too long."""
        timeout = self.environment.step_timeout
        try:
            return side_by_side(call, items, THREADS, timeout)
        except TookTooLongError as late:
            raise GymError(
                f"the environment was not done after {timeout:g} seconds",
                where=f"row {getattr(items[late.place], 'id', '')}",
                key=KEY,
                fix="have it give up earlier, or set `step_timeout` to more",
            ) from None

    def _begun(self, held: OpenEpisodes, prompt: Prompt) -> Episode:
        episode: Episode = self._failing(prompt.id, self.episodes, prompt.row, prompt.messages)
        held.begun(prompt.id, episode)
        return episode

    def _write(self, going: Sequence[_Player], asked: RolloutRequest, turn: int, generate: Generate) -> None:
        """Have the engine write the next turn of each."""
        room = [one.room(asked.max_new_tokens) for one in going]
        request = replace(
            asked,
            prompts=[[*one.tokens, *one.trajectory.tokens, *one.pending] for one in going],
            streams=[one.stream + turn * TURN for one in going],
            max_new_tokens=max(room),
            limits=room,
        )
        for one, before in zip(going, request.prompts, strict=True):
            one.thinks = self._begins_thinking(before)
        for one, made, left in zip(going, generate(request, [one.id for one in going]), room, strict=True):
            trajectory, own = one.trajectory, one.trajectory.completion
            if one.pending:
                trajectory.observations[len(own.tokens)], one.pending = one.pending, []
            if len(made.tokens) > left:  # engines that know one limit alone give more to some
                made = Completion(made.tokens[:left], made.log_probs[:left])
            own.tokens += made.tokens
            own.log_probs += made.log_probs
            own.finished, own.stop = made.finished, made.stop
            trajectory.text = self.tokenizer.decode(made.said)
            trajectory.turns.append({"role": "assistant", "content": trajectory.text})

    def _begins_thinking(self, before: Sequence[int]) -> bool:
        """Return whether a turn behind these tokens begins within a thought: rows may tell the template to, or not to."""
        start = self.format.thought_start
        return bool(start) and self.tokenizer.decode(before[-TAIL:]).rstrip().endswith(start)

    def _step(self, one: _Player) -> StepResult:
        action = self._action(one)
        if action.calls:
            one.trajectory.turns[-1] = {**one.trajectory.turns[-1], CALLED: [_told(call) for call in action.calls]}
        result = self._failing(one.id, lambda: one.episode.step(action))
        try:
            return checked(self._failing(one.id, promised, result, StepResult, self.environment, KEY))
        except ValueError as error:
            raise GymError(f"the environment gave {error}", where=f"row {one.id}", key=KEY, fix=FIX) from None

    def _action(self, one: _Player) -> Action:
        """Return what the last turn says, as the chat template has answers written."""
        text, written = one.trajectory.text, replace(self.format, begins_thinking=one.thinks)
        read = parser_of(written, one.prompt.tools).feed(text, end=True)
        return Action(text, read.content, [Call(call.name, call.arguments) for call in read.calls])

    def _take(self, one: _Player, result: StepResult, most: int, last: bool) -> None:
        """Take what the environment said of the last turn."""
        trajectory = one.trajectory
        one.earned.append(result.reward)
        trajectory.reward = total(one.earned)
        for name, value in result.metrics.items():
            trajectory.metrics[name] = trajectory.metrics.get(name, 0.0) + value
        if not result.messages or not trajectory.completion.finished:
            one.going = False
            return
        own = trajectory.completion
        ended = own.stop is None or own.tokens[-1] in self.next_turn.ends
        after = result.messages, own.tokens[-1] if ended else None, one.prompt.tools, one.prompt.values
        one.pending = self._failing(one.id, self.next_turn.tokens, *after)
        if last or one.room(most) <= 0:
            one.going, own.finished, own.stop = False, False, None
        else:
            trajectory.turns += result.messages

    def _failing(self, row: str, call: Callable[..., Any], *given: Any) -> Any:
        """Return what foreign code returns. Raises GymError with the row where it fails, or wants the process to end."""
        try:
            return call(*given)
        except GymError as error:
            raise type(error)([replace(each, where=each.where or f"row {row}") for each in error.problems]) from error
        except (Exception, SystemExit) as error:
            *_, (frame, line) = walk_tb(error.__traceback__)
            place = f"{Path(frame.f_code.co_filename).name}:{line}"
            why = f"the environment failed at {place}: {type(error).__name__}: {error}"
            raise GymError(why, where=f"row {row}", key=KEY) from error


def _raised(failed: GymError | None) -> None:
    if failed is not None:
        raise failed

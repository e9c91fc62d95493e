"""Trains many users at once: each step is one optimizer step of every user present, computed in passes over joint batches.

Users enter and leave between steps. What a step computes for one of them follows from its own run alone, up to rounding: the
tokens of others are other rows of the same products. `gym_personalization.user_scheduler` says who is present when.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from gym_core import Artifact, GymError, Recipe
from gym_personalization import idle_state
from gym_personalization.base import Base
from gym_personalization.joint_batch import join
from gym_personalization.user_run import UserRun, failed, user_run
from gym_personalization.variants import STATE, disk_errors
from gym_torch.batch import Batch
from gym_torch.checkpoints.training_state import check_skips
from gym_torch.loop import log_evaluate, train_loop
from gym_torch.loop.step_batches import StepBatches
from gym_torch.loop.step_metrics import StepMetrics
from gym_torch.metrics import Mean
from gym_torch.policy import evaluating
from gym_torch.source import Step

#: Tokens in one pass, by default and kind of device: as many as have their activations in the caches of a CPU.
TOKENS = {"cpu": 512}
OTHERWISE = 8192


@dataclass
class _Turn:
    """What one user does in a step."""

    user: UserRun
    step: Step
    whole: StepBatches
    metrics: StepMetrics


class Engine:
    """One base in memory, and the users who train on it now."""

    def __init__(self, recipe: Recipe, output: Path, users: int = 64, tokens: int | None = None) -> None:
        """Load the base of a recipe and make room.

        Args:
            recipe: what all users share; of the sections that a user's own recipe may not change, this one counts.
            output: directory of all users.
            users: most users in training at a time; memory grows with them and not with those who wait.
            tokens: most tokens in one pass through the model, but for a single user's batch that has more; by default what
                suits the device.

        Raises GymError for a model or an adapter that users cannot share.

        """
        self.base = Base(recipe, output, users)
        self.tokens = tokens or TOKENS.get(self.base.accelerator.device.type, OTHERWISE)
        self.present: dict[str, UserRun] = {}

    @property
    def free(self) -> int:
        """How many more users have room."""
        return self.base.slots - len(self.present)

    def join(self, name: str, recipe: Recipe, output: Path) -> UserRun:
        """Let a user in: a new one, or one whose state lies in `output`, who goes on from there exactly.

        Raises GymError where there is no room, where the user is here already, and what `user_run` raises.
        """
        if name in self.present:
            raise GymError(f"user `{name}` is in training already", fix="leave first")
        taken = {user.slot for user in self.present.values()}
        slot = next((number for number in range(self.base.slots) if number not in taken), None)
        if slot is None:
            raise GymError(
                f"{self.base.slots} users are in training, for whom there is room", fix="wait for one to leave"
            )
        resuming = (output / STATE).is_file()
        with disk_errors(output):
            user = user_run(self.base, name, recipe, output, slot, resuming)
            if resuming:
                idle_state.read(user)
            check_skips(recipe.train.skip_steps, user.job.progress)
            user.start()
        self.present[name] = user
        return user

    def save(self, name: str) -> None:
        """Write the state of a user, who stays."""
        idle_state.write(self.present[name])

    def leave(self, name: str) -> UserRun:
        """Write the state of a user and let go of it; `join` goes on from there."""
        user = self.present[name]
        if not user.ended:
            idle_state.write(user)
            with disk_errors(user.run.output):
                user.run.record.update(status="interrupted")
        return self._let_go(name)

    def finish(self, name: str) -> Artifact:
        """Write what a user has trained as an ordinary adapter, and let go of the user; its state is removed."""
        user = self.present[name]
        with disk_errors(user.run.output):
            artifact = user.finish()
        (user.run.output / STATE).unlink(missing_ok=True)
        self._let_go(name)
        return artifact

    def drop(self, name: str, error: GymError) -> None:
        """Let go of a user whose run failed, and write down why; its last state on the disk stays."""
        failed(self.present[name].run, error)
        self._let_go(name)

    @contextmanager
    def hosting(self, names: Collection[str]) -> Iterator[None]:
        """Let go of those of these users who are still here when the block ends, for whatever reason; nothing is written.

        So an error, or whoever asks for no more, leaves their room to others, and they go on from their last state.
        """
        try:
            yield
        finally:
            for name in [name for name in names if name in self.present]:
                self._let_go(name)

    def step(self) -> Mapping[str, GymError]:
        """Take one optimizer step of every user present who is not over; return the errors of those who failed, by name.

        A failed user is let go of, and changes nothing for the others.
        """
        errors: dict[str, GymError] = {}
        began = time.monotonic()
        turns: list[_Turn] = []
        for user in sorted(self.present.values(), key=lambda each: each.slot):
            if user.job.progress.over:
                continue
            try:
                turn = self._turn(user, began)
            except GymError as error:
                errors[user.name] = error
            else:
                turns += [turn] if turn else []
        for number in range(max((len(turn.whole.batches) for turn in turns), default=0)):
            for together in self._passes([turn for turn in turns if number < len(turn.whole.batches)], number):
                errors |= self._backward(together, number)
        for turn in turns:
            if turn.user.name in errors:
                continue
            try:
                train_loop.update(turn.user.job, turn.step, turn.whole, turn.metrics, began)
                self._told(turn.user)
            except GymError as error:
                errors[turn.user.name] = error
        for name, why in errors.items():
            self.drop(name, why)
        return errors

    def _turn(self, user: UserRun, began: float) -> _Turn | None:
        """Lay the next step of a user out; None where it learns nothing in it."""
        job = user.job
        step = next(user.steps)
        if job.progress.step + 1 in job.train.skip_steps or step.idle:
            if job.progress.step + 1 in job.train.skip_steps:
                train_loop.skip(job, step)
            else:
                train_loop.rest(job, step, began)
            self._told(user)
            return None
        whole = StepBatches.of(job, step)
        for group in job.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * job.factor(job.progress.step)
        user.policy.zero_grad()
        return _Turn(user, step, whole, StepMetrics())

    def _told(self, user: UserRun) -> None:
        """Tell those who watch a user of a finished step."""
        with disk_errors(user.run.output):
            user.job.observer.stepped(user.job.progress)
            log_evaluate.tell(user.job)

    def _passes(self, turns: Sequence[_Turn], number: int) -> Iterator[list[_Turn]]:
        """Yield users in the order of their slots, as many as have `tokens` together."""
        found: list[_Turn] = []
        size = 0
        for turn in turns:
            own = turn.whole.batches[number].tokens.numel()
            if found and size + own > self.tokens:
                yield found
                found, size = [], 0
            found.append(turn)
            size += own
        if found:
            yield found

    def _backward(self, turns: Sequence[_Turn], number: int) -> dict[str, GymError]:
        """Add the gradients of one batch of each user to its own, in one pass; return the errors of those who have no loss."""
        device = self.base.accelerator.device
        batches: list[Batch] = [turn.whole.batches[number].to(device) for turn in turns]
        joint = join(batches)
        policies = [turn.user.policy for turn in turns]
        if any(each.needed for turn in turns for each in turn.user.references):
            with self.base.lora.off(), torch.no_grad(), evaluating(self.base.policy):
                for policy, batch, own in zip(policies, batches, self._scores(joint.batch, joint.targets), strict=True):
                    policy.known(batch, own)
        self.base.lora.give([(policy.slot, size) for policy, size in zip(policies, joint.tokens, strict=True)])
        losses: list[torch.Tensor] = []
        errors: dict[str, GymError] = {}
        for turn, batch, own in zip(turns, batches, self._scores(joint.batch, joint.targets), strict=True):
            turn.user.policy.known(batch, own)
            try:
                loss, found = turn.user.job.loss(batch)
            except GymError as error:
                errors[turn.user.name] = error
            else:
                share = 1 / turn.whole.weight
                turn.metrics.add({"loss": Mean(loss), **found}, share)
                losses.append(loss * share)
            turn.user.policy.forget()
        if losses:
            self.base.accelerator.backward(torch.stack(losses).sum())
        return errors

    def _scores(self, batch: Batch, targets: Sequence[int]) -> Sequence[torch.Tensor]:
        """Return the log-probabilities of a joint batch, each user's apart."""
        return self.base.policy.log_probs(batch).split(list(targets))

    def _let_go(self, name: str) -> UserRun:
        user = self.present.pop(name)
        user.closed()
        return user

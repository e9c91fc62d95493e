"""Has any number of users trained by an engine with room for a few: who waits enters as soon as somebody has left.

Whoever is not in training is a file. A process that was killed is followed by one that goes on: finished users are left
alone, those with a state go on from it, the others begin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gym_core import Artifact, BusyError, GymError, Interrupted, Recipe, Run
from gym_core.execution import execute, opening
from gym_core.hooks import manager_for
from gym_core.record import RunRecord
from gym_personalization.base import AloneError
from gym_personalization.training_engine import Engine
from gym_personalization.variants import disk_errors
from gym_torch import kernel_libraries
from gym_torch.console import say
from gym_torch.loop.log_evaluate import due
from gym_torch.loop.signals import Signals

#: What the record of a trained user says of the recipe, where another quantizer is asked than the one that refused.
QUANTIZED = ("fingerprint", "recipe", "settings", "components")


@dataclass(frozen=True)
class Waiting:
    """A user who is to be trained."""

    name: str
    output: Path  #: directory of its run
    recipe: Callable[[], Recipe]  #: makes its recipe when it enters, which is checked then
    check: Callable[[], None] = lambda: None
    """Called before; raises GymError where it is not what it was when it began."""


@dataclass(frozen=True)
class Trained:
    """What became of a user."""

    name: str
    output: Path
    artifact: Artifact | None = None
    """To be served: what the quantizer made, or the adapter; None where training failed or the quantizer refused."""
    error: GymError | None = None  #: why there is none
    repeated: bool = False  #: it had been trained before


def train_all(
    engine: Engine,
    waiting: Iterable[Waiting],
    turn: int | None = None,
    told: Callable[[Engine], None] = lambda engine: None,
) -> Iterator[Trained]:
    """Yield what becomes of users as they finish or fail, whoever is first; those who cannot share train alone at the end.

    Args:
        engine: whose room is used; users who are in it already are left alone, and train along.
        waiting: who is to be trained; taken one after another, so it may be endless.
        turn: optimizer steps after which a user makes room for one who waits, its state on the disk; by default when it
            has finished.
        told: called after each step.

    Raises Interrupted after a signal, when the states of all are on the disk.

    """
    users = _Users(engine, _Queue(waiting), turn)
    with Signals() as signals, kernel_libraries.in_use(engine.base.run), engine.hosting(users.present):
        while True:
            yield from users.enter()
            if not users.present:
                break
            yield from users.step()
            told(engine)
            yield from users.make_room()
            if signals.received:
                for name in list(users.present):
                    engine.leave(name)
                raise Interrupted(signals.received)
    yield from map(train_alone, users.alone)


class _Users:
    """Users in training and those who wait."""

    def __init__(self, engine: Engine, queue: _Queue, turn: int | None) -> None:
        self._engine, self._queue, self._turn = engine, queue, turn
        self.present: dict[str, Waiting] = {}  #: those in training, but for the ones that were in the engine before
        self.alone: list[Waiting] = []  #: who cannot share
        self._entered: dict[str, int] = {}  # the step of each user when it entered

    def enter(self) -> Iterator[Trained]:
        """Let users in while there is room; yield those who are finished already or cannot be trained."""
        while self._engine.free and self._queue.exceeds(0):
            user = self._queue.next()
            try:
                found = _enter(self._engine, user)
            except AloneError as why:
                say(f"{user.name} trains alone: {why.problems[0].why}")
                self.alone.append(user)
                continue
            if found is not None:
                yield found
                continue
            self.present[user.name] = user
            self._entered[user.name] = self._engine.present[user.name].job.progress.step

    def step(self) -> Iterator[Trained]:
        """Take an optimizer step of everybody; yield those who failed."""
        for name, error in self._engine.step().items():
            if name in self.present:
                yield Trained(name, self.present.pop(name).output, error=error)

    def make_room(self) -> Iterator[Trained]:
        """Yield who is finished, have those leave whose turn is over, and save the others where that is due."""
        engine, left = self._engine, []
        for name, user in list(self.present.items()):
            job = engine.present[name].job
            over: Trained | None = None
            try:
                if job.progress.over:
                    over = _finished(engine, user)
                elif self._turn_is_over(name):
                    engine.leave(name)
                    left.append(self.present.pop(name))
                elif due(job.progress, job.train.save_every):
                    engine.save(name)
            except GymError as error:  # as of a disk that is full: the last state is whole
                if name in engine.present:
                    engine.drop(name, error)
                over = Trained(name, user.output, error=error)
            if over is not None:
                del self.present[name]
                yield over
        self._queue.again.extend(left)  # who waited before them has their room

    def _turn_is_over(self, name: str) -> bool:
        """Whether a user has had its turn, and there is less room than others need."""
        steps = self._engine.present[name].job.progress.step - self._entered[name]
        return self._turn is not None and steps >= self._turn and self._queue.exceeds(self._engine.free)


class _Queue:
    """Those who wait: first those who have not been in training, taken from where they come as they are needed."""

    def __init__(self, coming: Iterable[Waiting]) -> None:
        self._coming, self._ahead = iter(coming), deque[Waiting]()
        self.again: deque[Waiting] = deque()  #: who made room for others

    def exceeds(self, count: int) -> bool:
        """Whether more than so many wait."""
        more = islice(self._coming, max(0, count + 1 - len(self._ahead) - len(self.again)))
        self._ahead.extend(more)
        return len(self._ahead) + len(self.again) > count

    def next(self) -> Waiting:
        """Return who is next, of at least one."""
        self._ahead.extend(islice(self._coming, 0 if self._ahead else 1))
        return (self._ahead or self.again).popleft()


def train_alone(user: Waiting) -> Trained:
    """Train a user as `gym train` does, with a model of its own. Raises Interrupted after a signal."""
    try:
        with disk_errors(user.output):
            user.check()
            made = execute(user.recipe())
    except Interrupted:
        raise
    except GymError as error:
        return Trained(user.name, user.output, error=error)
    return Trained(user.name, user.output, made.artifact, repeated=made.repeated)


def _enter(engine: Engine, user: Waiting) -> Trained | None:
    """Let a user in; return what became of it where it is finished already, or cannot be trained."""
    record = RunRecord(user.output / "run.json")
    try:
        with disk_errors(user.output):
            user.check()
        recipe, before = user.recipe(), record.read()
        if before.get("status") == "finished":
            _check_same(recipe, before, user)
            if before["artifact"] is None:  # it ended before its quantizer did
                run = Run(recipe, user.output, record, resuming=True)
                record.update(**dict.fromkeys(QUANTIZED))  # for mappings are merged
                record.update(**{key: value for key, value in opening(recipe, before).items() if key in QUANTIZED})
                return delivered(run, user, Artifact.from_json(before["trained"], user.output))
            return Trained(user.name, user.output, Artifact.from_json(before["artifact"], user.output), repeated=True)
        engine.join(user.name, recipe, user.output)
    except AloneError:
        raise
    except GymError as error:
        with suppress(OSError):
            user.output.mkdir(parents=True, exist_ok=True)
            if record.read().get("status") != "finished":
                record.update(status="failed", error={"problems": [problem.to_json() for problem in error.problems]})
        return Trained(user.name, user.output, error=error)
    return None


def _check_same(recipe: Recipe, before: dict[str, Any], user: Waiting) -> None:
    """Raise BusyError where a user was trained with another recipe; one that a quantizer refused may get another quantizer."""
    old, new = (_training(settings) for settings in (before.get("settings", {}), recipe.settings()))
    if before.get("fingerprint") != recipe.fingerprint() and (before["artifact"] is not None or old != new):
        raise BusyError(
            f"user `{user.name}` was trained with another recipe",
            where=str(user.output),
            key="output",
            fix="choose another `output`, or remove the user's folder",
        )


def _training(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if not key.startswith(("quantization", "output"))}


def _finished(engine: Engine, user: Waiting) -> Trained:
    run = engine.present[user.name].run
    return delivered(run, user, engine.finish(user.name))


def delivered(run: Run, user: Waiting, artifact: Artifact) -> Trained:
    """Record what is served of a user: what the quantizer of the recipe makes of the adapter, or that itself.

    Where the quantizer refuses, nobody is served by it: it may be what the gate of its options holds back. The adapter stays, and
    the quantizer is asked again the next time.

    The record merges values key by key, so what is served is written once, over nothing: details of an adapter beside those of a
    delta would be options that its quantizer does not have.
    """
    if run.recipe.quantization is None:
        return Trained(user.name, user.output, artifact)
    hook = manager_for(run.recipe.hooks).hook
    try:
        with disk_errors(user.output):
            made: Artifact = hook.quantize(run=run, artifact=artifact, into=run.output / "quantized") or artifact
            run.record.update(artifact=made.to_json(), refused=None)
    except GymError as error:
        with suppress(OSError):  # a full disk must not hide what happened
            run.record.update(refused={"problems": [problem.to_json() for problem in error.problems]})
        return Trained(user.name, user.output, error=error)
    return Trained(user.name, user.output, made)

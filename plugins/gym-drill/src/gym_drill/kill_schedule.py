"""The schedule of kills: signals and the times at which a run gets them, drawn from a seed."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from gym_drill.run_phases import CHECKPOINT, ENDING, EVALUATION, FINAL, RETENTION, START, TRAINING, Course

SIGNALS = (signal.SIGTERM, signal.SIGINT)  #: what asks a run to stop, in turn


@dataclass(frozen=True)
class Blow:
    """One signal, and the moment it waits for."""

    step: int  #: not before so many steps are finished
    phase: str
    signal: signal.Signals = signal.SIGKILL


def plan(kills: int, draw: random.Random, course: Course, late_phases: Sequence[str] = ()) -> list[Blow]:
    """Return so many kills, and a polite signal for every five of them (at least one), in the order of their steps.

    A fifth of the kills comes after the last step, among them in `late_phases`; the others are spread over the steps and over
    what happens there.
    """
    late = kills // 5
    during = [TRAINING, CHECKPOINT, TRAINING, *([EVALUATION] if course.evaluations else []), START, RETENTION]
    after = [FINAL, *late_phases, ENDING]
    early = kills - late
    blows = [Blow(_step(draw, course), phase) for phase in _cycle(during, early)]
    blows += [Blow(course.total, phase) for phase in _cycle(after, late)]
    for number in range(max(1, kills // 5)):
        blows.append(Blow(_step(draw, course), TRAINING, SIGNALS[number % 2]))
    return sorted(blows, key=lambda blow: blow.step)


def instead(missed: Blow, draw: random.Random, course: Course) -> Blow:
    """Return a blow that replaces one that came too late: while training, which is hard to miss."""
    return Blow(_step(draw, course), TRAINING, missed.signal)


def _step(draw: random.Random, course: Course) -> int:
    return draw.randrange(1, max(2, course.total))


def _cycle(phases: Sequence[str], count: int) -> list[str]:
    return [phases[number % len(phases)] for number in range(count)]

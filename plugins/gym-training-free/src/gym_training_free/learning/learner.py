"""The loop: batches of questions, what their groups teach, and a library that changes only where that does no harm."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from gym_core.errors import GymError
from gym_training_free.endpoint.journal import Key
from gym_training_free.endpoint.ledger import CapReached, Charge
from gym_training_free.experience.leak_guard import labels, leaks
from gym_training_free.experience.library import ExperienceLibrary
from gym_training_free.experience.operations import Change, Operation, apply
from gym_training_free.learning.answering import Asking, Attempt
from gym_training_free.learning.gate import Comparison, compare
from gym_training_free.learning.group_lessons import Critic, by_source, teaches
from gym_training_free.questions import Question, Questions

_log = logging.getLogger(__name__)


@dataclass
class Round:
    """What happened between two versions of the library."""

    step: int  #: from 1
    epoch: int  #: from 0
    batch: int  #: from 0
    questions: int
    answers: int  #: that the endpoint gave
    reward: float | None  #: mean of the answers
    teaching: int = 0  #: groups whose rewards differ
    planned: bool = False  #: whether the critic reconciled the proposals, rather than rules alone
    changes: list[Change] = field(default_factory=list)
    comparison: Comparison | None = None
    accepted: bool | None = None  #: None where nothing was to be decided
    experiences: int = 0  #: after it
    cost: float = 0.0  #: US dollars of the run so far, at most
    unpriced: list[str] = field(default_factory=list)  #: models asked so far that are not in `cost`
    tokens: int = 0  #: of the run so far, at most

    @property
    def verdict(self) -> str:
        """What became of what was proposed."""
        return {None: "nothing to decide", True: "accepted", False: "rolled back"}[self.accepted]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        told = {name: value for name, value in asdict(self).items() if name not in ("changes", "comparison")}
        compared = self.comparison.to_json() if self.comparison else None
        return told | {"changes": [change.to_json() for change in self.changes], "comparison": compared}


@dataclass
class Learner:
    """One run."""

    asking: Asking
    critic: Critic
    questions: Questions
    shuffle: bool = True
    told: Callable[[Round, ExperienceLibrary], None] = lambda made, library: None
    rounds: list[Round] = field(default_factory=list)
    stopped: str = ""  #: why it ended before all epochs
    begun: ExperienceLibrary = field(default_factory=ExperienceLibrary)  #: what it began with
    _measured: dict[str, list[list[Attempt]]] = field(default_factory=dict)

    def learn(self, library: ExperienceLibrary) -> ExperienceLibrary:
        """Return the library after all epochs, or after those that the caps allow. Raises GymError where nobody answers."""
        config, self.begun = self.asking.config, library
        try:
            for epoch in range(config.max_epochs):
                order = self._order(epoch)
                for batch, start in enumerate(range(0, len(order), config.batch_size)):
                    library = self._step(library, epoch, batch, order[start : start + config.batch_size])
        except CapReached as error:
            self.stopped = str(error)
            _log.warning("stopped: %s", error)
        return replace(library, evidence=self.evidence(library))

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self.questions.train)))
        if self.shuffle:
            random.Random(f"epoch {self.asking.seed} {epoch}").shuffle(order)
        return order

    def _step(self, library: ExperienceLibrary, epoch: int, batch: int, numbers: Sequence[int]) -> ExperienceLibrary:
        config = self.asking.config
        questions = {number: self.questions.train[number] for number in numbers}
        groups = self.asking.answers(
            questions, library, config.group_size, epoch, batch, "rollout", config.temperature_train
        )
        attempts = [one for group in groups for one in group]
        answered = [one for one in attempts if one.reply is not None]
        if not answered:
            where, failures = self.asking.model.where, self.asking.caller.failures
            why = f"gave no answer to a whole batch: {failures.most_common(1)[0][0]}"
            raise GymError(why, where=where, key="model", fix="see that it runs, and what it logs")
        rewards = [one.reward for one in answered if one.reward is not None]
        made = Round(
            len(self.rounds) + 1, epoch, batch, len(groups), len(answered), fmean(rewards) if rewards else None
        )
        library = library.with_uses(Counter(identity for one in answered for identity in one.shown))
        library = self._updated(library, [_comparable(g) for g in groups if teaches(g, self._judged)], made)
        # A run that goes on has spent by now what later rounds cost too.
        caller, key = self.asking.caller, Key(epoch, batch, -1, -1, "spent")
        spent = Charge.from_json(caller.journal.noted(key, caller.ledger.spent.to_json))
        made.experiences, made.cost, made.tokens = len(library), spent.cost, spent.usage.total
        made.unpriced = sorted(caller.unpriced)
        self.rounds.append(made)
        self.told(made, library)
        return library

    @property
    def _judged(self) -> bool:
        return self.asking.judge is not None

    def _updated(self, library: ExperienceLibrary, groups: list[list[Attempt]], made: Round) -> ExperienceLibrary:
        """Return the library after what these groups teach, unless that does harm."""
        made.teaching = len(groups)
        if not groups:
            return library
        summaries = self.critic.summaries(groups, made.epoch, made.batch)
        proposed = self.critic.operations(groups, summaries, library, made.epoch, made.batch)
        if not any(one.operation != "NONE" for group in proposed for one in group):
            return library
        plan, made.planned = self.critic.plan(proposed, library, made.epoch, made.batch)
        sources = by_source(groups)
        changed, made.changes = apply(library, plan, made.step, self.critic.limits, self._leaks(sources))
        if changed.fingerprint() == library.fingerprint():
            return changed  # at most it knows more sources
        if not self._gated:
            made.accepted = True
            return changed
        made.comparison = compared = self._compared(library, changed, made)
        made.accepted = compared is not None and compared.p_harm >= self.asking.config.gate_level
        if compared is None or not made.accepted:
            # An id that was given is never given again, also where what bore it is gone.
            return replace(library, next_id=changed.next_id)
        mine = [one.id for one in changed if one.updated == made.step]
        return changed.with_uplift({identity: compared.gain / len(mine) for identity in mine})

    def _leaks(self, sources: Mapping[str, Question]) -> Callable[[Operation], str]:
        """Return what says what an operation gives away of the questions of this batch."""
        rows = [(question.text, question.row) for question in sources.values()]
        column = self.asking.config.answer
        return lambda operation: leaks(operation.content, rows, column, self._labels)

    @cached_property
    def _labels(self) -> frozenset[tuple[str, ...]]:
        every = (*self.questions.train, *self.questions.held_out)
        return labels([one.row.get(self.asking.config.answer) for one in every])

    @property
    def _gated(self) -> bool:
        return self.asking.config.gate and bool(self.questions.held_out) and self._judged

    def _compared(self, old: ExperienceLibrary, new: ExperienceLibrary, made: Round) -> Comparison | None:
        first = self.measured(old, made.epoch, made.batch, "gate:old")
        if not any(one.reward is not None for group in first for one in group):
            fix = "see what the log says of the reward and of the endpoint, or write gate: false"
            raise GymError("no answer to the questions held out has a reward", key="algorithm.gate", fix=fix)
        return compare(first, self.measured(new, made.epoch, made.batch, "gate:new"))

    def measured(self, library: ExperienceLibrary, epoch: int, batch: int, role: str) -> list[list[Attempt]]:
        """Return answers to the questions held out, with this library; asked once for each library."""
        if (found := self._measured.get(library.fingerprint())) is None:
            config = self.asking.config
            held: dict[int, Question] = dict(enumerate(self.questions.held_out))
            found = self.asking.answers(held, library, config.eval_samples, epoch, batch, role, config.temperature_eval)
            self.asking.caller.insist(self.asking.model)  # a server that is down is no harm of a library
            self._measured[library.fingerprint()] = found
        return found

    def evidence(self, library: ExperienceLibrary) -> dict[str, Any]:
        """Return what was measured of a library: against the one in the beginning, on the questions held out, where both were
        asked.
        """
        first, last = (self._measured.get(one.fingerprint()) for one in (self.begun, library))
        compared = compare(first, last) if first and last else None
        spent = self.asking.caller.ledger
        return {
            "begun_with": self.begun.fingerprint() if len(self.begun) else None,
            "evaluated": compared is not None,
            "held_out": compared.to_json() | {"questions": len(self.questions.held_out)} if compared else None,
            "rounds": len(self.rounds),
            "rolled_back": sum(one.accepted is False for one in self.rounds),
            "confirmed": spent.confirmed.to_json(),
            "unconfirmed": spent.lost.to_json(),
            "unpriced": sorted(self.asking.caller.unpriced),
            "stopped": self.stopped,
            "left_out": {model: sorted(names) for model, names in self.asking.caller.journal.left_out.items()},
        }


def _comparable(group: list[Attempt]) -> list[Attempt]:
    """Return the attempts that were answered and, where others are, judged."""
    answered = [one for one in group if one.reply is not None]
    return [one for one in answered if one.reward is not None] or answered

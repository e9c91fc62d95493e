"""What a group of attempts teaches: summaries, the comparison of better and worse ones, and operations on the library."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gym_training_free.config import GRPOConfig
from gym_training_free.endpoint.caller import Caller
from gym_training_free.endpoint.chat import ChatModel, ChatRequest, Message
from gym_training_free.endpoint.journal import Key
from gym_training_free.endpoint.reply import ChatReply
from gym_training_free.experience.leak_guard import final_answers
from gym_training_free.experience.library import ExperienceLibrary
from gym_training_free.experience.operations import Limits, Operation, fault, parse
from gym_training_free.learning.answering import Attempt
from gym_training_free.prompting import Prompts, block
from gym_training_free.questions import Question

_log = logging.getLogger(__name__)
_LESSONS = re.compile(r"<experiences>(.*?)(</experiences>|\Z)", re.DOTALL | re.IGNORECASE)
DIFFERENT = 1e-9  #: least difference of two rewards


def teaches(group: Sequence[Attempt], judged: bool) -> bool:
    """Whether attempts can be compared: their rewards differ, or nothing judges and there are several."""
    answered = [one for one in group if one.reply is not None]
    if not judged:
        return len(answered) > 1
    rewards = [one.reward for one in answered if one.reward is not None]
    return bool(rewards) and max(rewards) - min(rewards) > DIFFERENT


@dataclass(frozen=True)
class Critic:
    """The model that compares attempts and keeps the library."""

    config: GRPOConfig
    model: ChatModel
    caller: Caller
    prompts: Prompts
    limits: Limits

    def summaries(self, groups: Sequence[Sequence[Attempt]], epoch: int, batch: int) -> list[list[str]]:
        """Return a summary of each attempt; its transcript where the critic gives none. Raises GymError where it is down."""
        wanted = [one for group in groups for one in group]

        def summary(one: Attempt) -> str:
            blocks = [block("TASK", one.question.text), block("ATTEMPT", one.transcript)]
            blocks += [block("REWARD", _graded(one)), *self._reference(one.question)]
            said = self._say(
                Key(epoch, batch, one.number, one.sample, "summary"), self.prompts.asked("summary", blocks)
            )
            return said.text if said is not None else one.transcript

        made = iter(self.caller.map(summary, wanted, self.model))
        self.caller.insist(self.model)
        return [[next(made) for _ in group] for group in groups]

    def operations(
        self,
        groups: Sequence[Sequence[Attempt]],
        summaries: Sequence[Sequence[str]],
        library: ExperienceLibrary,
        epoch: int,
        batch: int,
    ) -> list[list[Operation]]:
        """Return what each group proposes. Raises GymError where the critic is down."""

        def proposed(place: int) -> list[Operation]:
            group = groups[place]
            key = Key(epoch, batch, group[0].number, -1, "advantage")
            lessons = self._lessons(key, group, summaries[place], library)
            if not lessons:
                return []
            blocks = [self._library(library), block("NEW LESSONS", "\n".join(f"- {lesson}" for lesson in lessons))]
            asked = self.prompts.asked("group_update", blocks, words=self.limits.words)
            found = self._operations(key._replace(role="group_update"), asked)
            # Without a plan of the critic its lessons are added as they are.
            plan = [Operation(operation="ADD", content=lesson) for lesson in lessons] if found is None else found
            return [one.model_copy(update={"sources": (group[0].question.id,)}) for one in plan]

        found = self.caller.map(proposed, range(len(groups)), self.model)
        self.caller.insist(self.model)
        return found

    def plan(
        self, proposed: Sequence[Sequence[Operation]], library: ExperienceLibrary, epoch: int, batch: int
    ) -> tuple[list[Operation], bool]:
        """Return one plan of all proposals, and whether the critic made it; without it the proposals stand as they are."""
        everything = [one for group in proposed for one in group]
        told = [
            {name: value for name, value in one.model_dump().items() if value and name != "sources"}
            for one in everything
        ]
        lines = "\n".join(json.dumps(one, ensure_ascii=False) for one in told)
        blocks = [self._library(library), block("PROPOSALS", lines)]
        asked = self.prompts.asked("batch_update", blocks, words=self.limits.words)
        found = self._operations(Key(epoch, batch, -1, -1, "batch_update"), asked)
        if found is None:
            return everything, False
        return [one.model_copy(update={"sources": _sources(one, everything)}) for one in found], True

    def _lessons(
        self, key: Key, group: Sequence[Attempt], summaries: Sequence[str], library: ExperienceLibrary
    ) -> list[str]:
        question = group[0].question
        blocks = [block("TASK", question.text), *self._reference(question), self._library(library)]
        for number, (one, summary) in enumerate(zip(group, summaries, strict=True), 1):
            blocks.append(block(f"ATTEMPT {number}, REWARD {_graded(one)}", summary))
        count = self.config.experiences_per_question
        said = self._say(key, self.prompts.asked("advantage", blocks, count=count, words=self.limits.words))
        tagged = _LESSONS.findall(said.text) if said else []
        text, closing = tagged[-1] if tagged else ("", "")
        written = text.splitlines()
        if said and not said.finished and not closing:
            written = written[:-1]  # the limit of its length cut the last one off
        lines = [re.sub(r"^\s*(?:[-*]|\d+[.)])\s*", "", line).strip() for line in written]
        return [line for line in lines if line][:count]

    def _operations(self, key: Key, messages: Sequence[Message]) -> list[Operation] | None:
        """Return the operations of a reply, mended once where they are wrong; None where there is nothing to use."""
        said = self._say(key, messages)
        if said is None:
            return None
        found, why = self._read(said.text)
        if why:
            again = [*messages, {"role": "assistant", "content": said.text}]
            again.append({"role": "user", "content": self.prompts.fill("repair", fault=why)})
            mended = self._say(key._replace(role=f"{key.role}/repair"), again)
            better, still = self._read(mended.text if mended else "")
            if better is not None and (found is None or not still):
                found = better
            elif found is None:
                _log.warning("%s wrote no operations that can be used: %s", self.model.where, still or why)
        return found

    def _read(self, said: str) -> tuple[list[Operation] | None, str]:
        """Return the operations of a text, None where they cannot be read, and what is wrong with them."""
        try:
            found = parse(said)
        except ValueError as error:
            return None, str(error)[:300]
        faults = [f"number {n}: {why}" for n, one in enumerate(found, 1) if (why := fault(one, self.limits))]
        return found, "; ".join(faults)

    def _say(self, key: Key, messages: Sequence[Message]) -> ChatReply | None:
        config = self.config
        request = ChatRequest(messages, config.critic_max_new_tokens, config.temperature_critic)
        return self.caller.call(self.model, key, request)

    def _library(self, library: ExperienceLibrary) -> str:
        return block("LIBRARY", library.lines() or "(it is empty)")

    def _reference(self, question: Question) -> list[str]:
        known = final_answers(question.row.get(self.config.answer))
        return [block("REFERENCE ANSWER", "\n".join(known))] if known else []


def _graded(attempt: Attempt) -> str:
    """Return the reward of an attempt and what was said of it, as text."""
    reward = "unknown" if attempt.reward is None else f"{attempt.reward:g}"
    return f"{reward}: {attempt.judgement.critique}" if attempt.judgement.critique else reward


def _sources(operation: Operation, proposed: Sequence[Operation]) -> tuple[str, ...]:
    """Return the questions behind an operation of a plan: those of proposals with its id or its text, else of all."""
    near = [
        one
        for one in proposed
        if (operation.id and one.id == operation.id) or (operation.content and one.content == operation.content)
    ]
    return tuple(dict.fromkeys(source for one in near or proposed for source in one.sources))


def by_source(groups: Sequence[Sequence[Attempt]]) -> Mapping[str, Question]:
    """Return the questions of groups by id."""
    return {group[0].question.id: group[0].question for group in groups if group}

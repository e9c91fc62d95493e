"""Answers of the model: many questions, several times each, with experiences in the prompt and tools in the loop."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gym_core.errors import GymError
from gym_rewards.reward import RewardInput
from gym_training_free import tools
from gym_training_free.answer_rewards import UNJUDGED, Judge, Judgement
from gym_training_free.config import GRPOConfig
from gym_training_free.endpoint.caller import Caller
from gym_training_free.endpoint.chat import ChatModel, ChatRequest, Message
from gym_training_free.endpoint.journal import Key
from gym_training_free.endpoint.reply import ChatReply
from gym_training_free.endpoint.reward_calls import Account
from gym_training_free.experience import retrieval
from gym_training_free.experience.library import ExperienceLibrary
from gym_training_free.prompting import Prompts
from gym_training_free.questions import Question


@dataclass(frozen=True)
class Attempt:
    """One answer to a question."""

    question: Question
    number: int  #: of the question, among those to learn from or held out
    sample: int
    reply: ChatReply | None  #: None where the endpoint gave none
    transcript: str = ""  #: with what tools were asked and said
    shown: tuple[str, ...] = ()  #: ids of the experiences in the prompt
    judgement: Judgement = UNJUDGED

    @property
    def reward(self) -> float | None:
        """What it earned."""
        return self.judgement.reward


@dataclass(frozen=True)
class Asking:
    """How questions are asked."""

    config: GRPOConfig
    model: ChatModel
    embedding: ChatModel | None
    caller: Caller
    prompts: Prompts
    judge: Judge | None
    seed: int
    batches: int = 1  #: of an epoch

    @property
    def steps(self) -> int:
        """Batches of the whole run."""
        return self.batches * self.config.max_epochs

    def answers(
        self,
        questions: Mapping[int, Question],
        library: ExperienceLibrary,
        samples: int,
        epoch: int,
        batch: int,
        role: str,
        temperature: float,
    ) -> list[list[Attempt]]:
        """Return the judged attempts at each question, in order.

        A seed follows from question, sample and `role` up to a colon: `gate:old` and `gate:new` are asked with the same ones.

        Raises CapReached, and GymError where the endpoint will never answer.
        """
        chosen = self._chosen(questions, library, Key(epoch, batch, -1, -1, f"{role}/embed"))
        wanted = [(number, sample) for number in questions for sample in range(samples)]

        def attempt(one: tuple[int, int]) -> Attempt:
            number, sample = one
            return self._attempt(
                questions[number], Key(epoch, batch, number, sample, role), library, chosen[number], temperature
            )

        attempts = self.caller.map(attempt, wanted, self.model, lambda one: one.reply is not None)
        made = self._judged(attempts, Key(epoch, batch, -1, -1, f"{role}/reward"))
        return [made[start : start + samples] for start in range(0, len(made), samples)]

    def _attempt(
        self, question: Question, key: Key, library: ExperienceLibrary, chosen: Sequence[str], temperature: float
    ) -> Attempt:
        config = self.config
        messages: list[Message] = self.prompts.with_experiences(question.messages, library, chosen)
        told: list[str] = []
        offered = tools.described(config.tools)
        kind = key.role.partition(":")[0]
        epoch = key.epoch if kind == "rollout" else 0  # what is measured is measured with the same seeds each time
        seed = _seed(self.seed, kind, epoch, question.id, key.sample)
        for turn in range(1, config.max_turns + 1):
            last = turn == config.max_turns  # it must answer now
            request = ChatRequest(
                list(messages), config.max_new_tokens, temperature, config.top_p, seed, () if last else tuple(offered)
            )
            role = key.role if turn == 1 else f"{key.role}/{turn}"
            reply = self.caller.call(self.model, key._replace(role=role), request)
            if reply is None:
                return Attempt(question, key.question, key.sample, None, "\n".join(told), tuple(chosen))
            told.append(reply.text)
            if not reply.tool_calls or last or not offered:
                break
            messages.append(tools.spoken(reply.text, reply.tool_calls))
            for place, call in enumerate(reply.tool_calls):
                names = config.tools if place < tools.MOST else ()
                use = partial(tools.use, call, names, config.tool_timeout)
                said = self.caller.journal.noted(key._replace(role=f"{role}/tool/{place}"), use)
                told.append(f"({call.name} {call.arguments} -> {said})")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
        return Attempt(question, key.question, key.sample, reply, "\n".join(told), tuple(chosen))

    def _judged(self, attempts: list[Attempt], key: Key) -> list[Attempt]:
        """Return the attempts with their rewards: those of the journal, where the same answers were judged before."""
        answered = [one for one in attempts if one.reply is not None]
        judge = self.judge
        if judge is None or not answered:
            return attempts
        inputs = [
            RewardInput(
                one.reply.text,
                one.question.row,
                one.question.messages,
                one.question.id,
                one.reply.usage.output if one.reply.usage else len(one.reply.text.split()),
                one.reply.finished,
            )
            for one in answered
            if one.reply is not None
        ]
        digest = hashlib.sha256("\0".join(one.text for one in inputs).encode("utf-8", "replace")).hexdigest()[:12]
        keys = [key._replace(question=one.number, sample=one.sample) for one in answered]
        account = Account(self.caller, {id(asked): place for asked, place in zip(inputs, keys, strict=True)})
        state = {"global_step": self.batches * key.epoch + key.batch, "max_steps": self.steps, "epoch": key.epoch}
        found = self.caller.journal.noted(
            key._replace(role=f"{key.role}/{digest}"),
            lambda: [one.to_json() for one in _useful(judge(inputs, account, state), answered, key)],
        )
        # A journal that has the grades asks no judge again, whose price is as unknown as before.
        self.caller.unpriced.update(one.name for one in judge.models if not one.priced)
        judged = {id(one): Judgement(*said) for one, said in zip(answered, found, strict=True)}
        return [replace(one, judgement=judged.get(id(one), one.judgement)) for one in attempts]

    def _chosen(self, questions: Mapping[int, Question], library: ExperienceLibrary, key: Key) -> dict[int, list[str]]:
        """Return the ids of the experiences that each question is shown."""
        count = self.config.retrieve
        if count is None or len(library) <= count:
            return {number: [one.id for one in library] for number in questions}
        texts = [*(one.text for one in library), *(one.text for one in questions.values())]
        vectors = self.caller.embed(self.embedding, key, texts) if self.embedding else None
        if vectors is None:
            return {number: retrieval.by_words(library, one.text, count) for number, one in questions.items()}
        known, asked = vectors[: len(library)], vectors[len(library) :]
        pairs = zip(questions, asked, strict=True)
        return {number: retrieval.by_vectors(library, known, vector, count) for number, vector in pairs}


def _useful(found: list[Judgement], answered: Sequence[Attempt], key: Key) -> list[Judgement]:
    """Return judgements. Raises GymError where a reward failed on each answer of a batch of several questions to learn from."""
    several = len({one.number for one in answered}) > 1 and key.role.startswith("rollout/")
    if several and all(one.failed for one in found):
        why = f"no answer of a whole batch could be judged: {found[0].failed[:300]}"
        fix = "mend that; a run with an `output` then goes on with the same answers"
        raise GymError(why, key="algorithm.rewards", fix=fix)
    return found


def _seed(*parts: object) -> int:
    """Return a seed that follows from these parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4]) >> 1

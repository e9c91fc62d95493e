"""A run put together: model, critic, judge, journal and ledger around one learner, and the files that it leaves."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from gym_core.artifact import Artifact
from gym_core.errors import GymError
from gym_core.files import replacing, write_atomically
from gym_core.record import plain
from gym_rewards import sandbox
from gym_training_free import __version__
from gym_training_free.answer_rewards import Judge
from gym_training_free.config import GRPOConfig
from gym_training_free.endpoint.caller import Caller
from gym_training_free.endpoint.chat import ChatModel, described
from gym_training_free.endpoint.journal import Journal
from gym_training_free.endpoint.ledger import Ledger
from gym_training_free.experience.library import FILE, ExperienceLibrary
from gym_training_free.experience.operations import Limits
from gym_training_free.learning.answering import Asking
from gym_training_free.learning.gate import sign_test
from gym_training_free.learning.group_lessons import Critic
from gym_training_free.learning.learner import Learner, Round
from gym_training_free.prompting import Prompts
from gym_training_free.questions import Questions, taught
from gym_training_free.report import report

_log = logging.getLogger(__name__)
#: Components among the options, which are described on their own.
APART = {"critic", "embedding", "rewards", "experiences"}
PROMPT = "system_prompt.txt"
#: Calls in a row, each with all its repetitions, after which a model is down: the run ends, and goes on later.
PATIENCE = 8


@dataclass(frozen=True)
class Models:
    """The models of a run."""

    worker: ChatModel  #: answers
    critic: ChatModel  #: compares, and keeps the library
    embedding: ChatModel | None = None

    def names(self) -> dict[str, Any]:
        """Return what they are called, by role; no keys."""
        listed = {"model": self.worker, "critic": self.critic, "embedding": self.embedding}
        return {role: described(one) for role, one in listed.items() if one is not None}

    def all(self) -> list[ChatModel]:
        """Return all of them."""
        return [one for one in (self.worker, self.critic, self.embedding) if one is not None]


@dataclass(frozen=True)
class Setting:
    """What a run is about."""

    config: GRPOConfig
    models: Models
    questions: Questions
    judge: Judge | None
    seed: int = 0
    shuffle: bool = True

    def described(self) -> dict[str, Any]:
        """Return, as plain data, everything that decides what is asked; no keys."""
        options = self.config.model_dump(mode="json", exclude=APART | self.config.changeable, serialize_as_any=True)
        begun = ExperienceLibrary.beginning(self.config.experiences)
        return {
            "gym-training-free": __version__,
            "models": self.models.names(),
            "rewards": self.judge.described() if self.judge else None,
            "options": options,
            "begun_with": {"fingerprint": begun.fingerprint(), "next_id": begun.next_id} if len(begun) else None,
            "prompts": Prompts.load(self.config.prompts).fingerprint(),
            "questions": self.questions.fingerprint(),
            "seed": self.seed,
            "shuffle": self.shuffle,
        }


@contextmanager
def asking(setting: Setting, journal: Path | None) -> Iterator[Asking]:
    """Give what asks, with the journal of this setting; the block's end closes it. Raises what opening the journal does."""
    config, models = setting.config, setting.models
    every = [*models.all(), *(setting.judge.models if setting.judge else ())]
    if config.max_cost is not None and (dear := [one.name for one in every if not one.priced]):
        fix = "write price: {input: ..., output: ...}, US dollars for a million tokens, or bound `max_total_tokens`"
        raise GymError(f"nobody knows what `{dear[0]}` costs, and `max_cost` needs that", key="model.price", fix=fix)
    if config.tools:
        sandbox.level("namespaces")  # refuse now what no tool could do later
    log = Journal(journal, setting.described())
    ledger = Ledger(config.max_cost, config.max_total_tokens, log.confirmed, log.lost)
    try:
        with Caller(log, ledger, max(one.concurrency for one in every), PATIENCE) as caller:
            prompts = Prompts.load(config.prompts)
            batches = ceil(len(setting.questions.train) / config.batch_size)
            yield Asking(config, models.worker, models.embedding, caller, prompts, setting.judge, setting.seed, batches)
    finally:
        log.close()


def learn(
    setting: Setting, output: Path | None, told: Callable[[Round], None] = lambda made: None
) -> ExperienceLibrary:
    """Learn; leave journal, metrics and report in a folder, where there is one, after every round. Returns what was learned."""
    config = setting.config
    limits = Limits(config.max_experiences, config.max_words, config.max_library_tokens)
    begun = ExperienceLibrary.beginning(config.experiences)
    _check_answers(setting)
    with asking(setting, output / "journal.jsonl" if output else None) as ask:
        critic = Critic(config, setting.models.critic, ask.caller, ask.prompts, limits)
        learner = Learner(ask, critic, setting.questions, setting.shuffle)
        _warn(setting)
        if known := taught(begun, setting.questions.held_out):
            why = "%d questions that are held out taught the library that the run begins with: what they measure is no evidence"
            _log.warning(why, known)

        def after(made: Round, library: ExperienceLibrary) -> None:
            if output:
                _write_rounds(output, learner, library)
            told(made)

        learner.told = after
        found = learner.learn(begun)
        if output:
            _write_rounds(output, learner, found)
        return replace(found, provenance={**setting.described(), "rounds": len(learner.rounds)})


def _check_answers(setting: Setting) -> None:
    """Raise GymError where no row has the column of answers that was named; say so where none was."""
    config = setting.config
    asked = (*setting.questions.train, *setting.questions.held_out)
    if not config.answer or any(config.answer in one.row for one in asked):
        return
    why = f"no row has the column `{config.answer}`"
    if "answer" in config.model_fields_set:
        columns = ", ".join(sorted({str(name) for one in asked for name in one.row}))
        fix = f"name the column of the reference answer, or nothing where there is none; there are {columns}"
        raise GymError(why, key="algorithm.answer", fix=fix)
    _log.warning(
        f"{why}: the critic sees no reference answer, and none is searched for in lessons; see `algorithm.answer`"
    )


def _warn(setting: Setting) -> None:
    """Say where the gate could not find harm, whatever the answers, and where there is none."""
    config, held = setting.config, len(setting.questions.held_out)
    count, measuring = held * config.eval_samples, config.gate and setting.judge is not None
    if held and not measuring:
        why = "%d questions are held out and measure nothing: that takes a reward and the gate; write `held_out: 0` to learn"
        _log.warning(why + " from them too", held)
    if measuring and sign_test(count, count) >= config.gate_level:
        least = next(number for number in itertools.count(1) if sign_test(number, number) < config.gate_level)
        why = "the gate rolls nothing back: %d answers are held out, and %d worse ones are the least that is harm"
        _log.warning(why + "; raise `held_out` or `eval_samples`", count, least)


def save(library: ExperienceLibrary, into: Path) -> Artifact:
    """Write a library as an artifact of kind `experience`: its file, the text for a system prompt, and what it is."""
    details = {
        "fingerprint": library.fingerprint(),
        "experiences": len(library),
        "provenance": dict(library.provenance),
        "evidence": dict(library.evidence),
    }
    base = str(library.provenance.get("models", {}).get("model", {}).get("name", ""))
    if into.exists():
        made = Artifact(into, "experience", base, details)
        _write(library, into, made)
        return made
    with replacing(into) as building:
        building.mkdir(parents=True)
        _write(library, building, Artifact(building, "experience", base, details))
    return Artifact(into, "experience", base, details)


def system_prompt(library: ExperienceLibrary) -> str:
    """Return the text to put into a system prompt."""
    prompts = Prompts.load(str(library.provenance.get("options", {}).get("prompts", "en")))
    return prompts.fill("worker", experiences=library.lines()) if len(library) else ""


def _write(library: ExperienceLibrary, into: Path, artifact: Artifact) -> None:
    write_atomically(into / FILE, json.dumps(library.to_json(), indent=1, ensure_ascii=False) + "\n")
    write_atomically(into / PROMPT, system_prompt(library) + "\n")
    artifact.record()


def _write_rounds(output: Path, learner: Learner, library: ExperienceLibrary) -> None:
    """Write what is known of all rounds; a run that goes on writes them again."""
    known = replace(library, evidence=learner.evidence(library))
    write_atomically(output / "report.html", report(known, learner.rounds))
    lines = [json.dumps(plain(_metrics(made))) for made in learner.rounds]
    write_atomically(output / "metrics.jsonl", "".join(f"{line}\n" for line in lines))
    rounds = [json.dumps(made.to_json(), ensure_ascii=False) for made in learner.rounds]
    write_atomically(output / "rounds.jsonl", "".join(f"{line}\n" for line in rounds))


def _metrics(made: Round) -> Mapping[str, Any]:
    """Return a line of `metrics.jsonl`."""
    compared = made.comparison
    kept = compared and (compared.new if made.accepted else compared.old)
    return {
        "step": made.step,
        "epoch": made.epoch,
        "reward": made.reward,
        "teaching_groups": made.teaching,
        "experiences": made.experiences,
        **({} if made.unpriced else {"cost": round(made.cost, 6)}),
        "num_tokens": made.tokens,
        **({"eval_reward": kept} if compared else {}),
    }

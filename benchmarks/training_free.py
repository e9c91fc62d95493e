"""Training-Free GRPO with a real worker behind Gym's own server, and what its journal costs.

A tiny model is tuned so that it guesses one of three answers unless a lesson in its system prompt says what comes next; it learns
from its own answers, and the critic alone is scripted. The same questions are asked without lessons, with those learned, and with
those that groups of one teach.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from report import Report, main

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins/gym-training-free/tests"))
from scripted_server import ScriptedServer
from tuned_world import Critic, short_prompts, small, tasks, tuned

from gym_training_free import ExperienceLibrary, GRPOConfig, OpenAI, TrainingFreeGRPO
from gym_training_free.answer_rewards import judge
from gym_training_free.endpoint.journal import Journal, Key
from gym_training_free.endpoint.ledger import Charge
from gym_training_free.endpoint.reply import ChatReply
from gym_training_free.questions import asked, questions
from gym_training_free.session import Models, Setting, asking

FRESH = 120  #: tasks on which libraries are compared
POINTS = 0.3  #: least rise


def reward(answer: str, row: Mapping[str, Any]) -> float:
    """Return whether an answer is right."""
    return float(answer.strip() == row["answer"])


def accuracy(trainer: TrainingFreeGRPO, library: ExperienceLibrary, kinds: int) -> float:
    """Return the share of fresh tasks that the worker solves with a library; seeds are the same, whatever the library."""
    found = questions(asked(tasks(FRESH, kinds, start=5000)), (), 0, 1)
    models = Models(trainer.model, trainer.model)
    with asking(Setting(trainer.config, models, found, judge(reward, 60.0), 1), None) as ask:
        every = dict(enumerate(found.train))
        answered = ask.answers(every, library, 1, 0, 0, "fresh", trainer.config.temperature_eval)
    return fmean(one.reward or 0.0 for group in answered for one in group)


def rise(seed: int, kinds: int, steps: int) -> dict[str, float]:
    """Return what a worker of this seed solves without lessons, with those that it learned, and with those of groups of one."""
    with tempfile.TemporaryDirectory() as scratch, ScriptedServer(Critic()) as critic:
        root = Path(scratch)
        prompts = short_prompts(root)
        train = {"batch_size": 16, "learning_rate": 5e-3, "seed": seed}
        model = tuned(small(root, hidden=64), root, steps * 16, kinds, prompts, **train)
        config = GRPOConfig(
            group_size=5,
            max_epochs=3,
            batch_size=20,
            held_out=20,
            temperature_eval=0.7,
            max_new_tokens=4,
            prompts=prompts,
            critic=OpenAI(path="critic", base_url=critic.base_url),
        )
        found = {}
        with TrainingFreeGRPO(str(model), config, seed=seed) as trainer:
            found["without"] = accuracy(trainer, ExperienceLibrary(), kinds)
            began = time.perf_counter()
            library = trainer.train(tasks(60, kinds), reward)
            found |= {"seconds": time.perf_counter() - began, "experiences": len(library)}
            found |= {"calls": library.evidence["confirmed"]["calls"], "with": accuracy(trainer, library, kinds)}
            server = trainer.model.server
            assert server is not None
            single = config.model_copy(update={"group_size": 1})
            ones = TrainingFreeGRPO("model", single, server.url(), server.token, seed=seed)
            found["groups of one"] = accuracy(trainer, ones.train(tasks(60, kinds), reward), kinds)
        return {name: round(value, 3) for name, value in found.items()}


def learning(out: Report, quick: bool) -> None:
    """Learn with three seeds, or with one."""
    kinds, steps = 3, 150 if quick else 250
    found = {seed: rise(seed, kinds, steps) for seed in ((0,) if quick else (0, 1, 2))}
    out.figures["real worker, by seed"] = found
    out.check("least rise", min(each["with"] - each["without"] for each in found.values()), at_least=POINTS)
    out.check(
        "most rise of groups of one", max(each["groups of one"] - each["without"] for each in found.values()), at_most=0
    )
    out.check("least success without lessons", min(each["without"] for each in found.values()), at_least=0.2)
    out.check("most success without lessons", max(each["without"] for each in found.values()), at_most=0.45)


def journal(out: Report, quick: bool) -> None:
    """Write calls by 1, 16 and 500 threads, with the disk and without."""
    disk = os.fsync
    for name in ("journal on the disk, ms a call", "journal in the system's memory, ms a call"):
        out.figures[name] = {str(threads): round(_written(threads, 500), 3) for threads in (1, 16, 500)}
        os.fsync = lambda file: None
    os.fsync = disk


def _written(threads: int, calls: int) -> float:
    """Return the milliseconds for each call, its line before it leaves and that of its reply."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # on a disk: temporary files may be in memory
        log = Journal(Path(folder, "journal.jsonl"), {})

        def work(number: int) -> None:
            for sample in range(calls // threads):
                key = Key(0, 0, number, sample, "rollout")
                log.sent(key, "digest", Charge())
                log.replied(key, "digest", ChatReply("x" * 400), Charge(), True)

        started = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        began = time.perf_counter()
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        seconds = time.perf_counter() - began
        log.close()
    return 1000 * seconds / calls


def everything(out: Report, quick: bool) -> None:
    """Measure both."""
    journal(out, quick)
    learning(out, quick)


if __name__ == "__main__":
    main(everything, __doc__ or "", learning=learning, journal=journal)

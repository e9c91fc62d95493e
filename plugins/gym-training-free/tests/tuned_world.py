"""A world for a real worker: a tiny model that is tuned to guess, unless a lesson in its system prompt says what comes next.

Each kind of task has one of three right answers. Without a lesson about the kind the model guesses: it is right one time in
three, and the answers of a group differ. With one it answers what the lesson makes it think of.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from simulated_world import World

from gym_core import execute, load_recipe
from gym_training_free import ExperienceLibrary
from gym_training_free.experience.library import Experience
from gym_training_free.prompting import Prompts

KINDS = ("apple", "bridge", "camel", "forest", "garden", "harbour", "lemon", "market", "station", "violin")
#: What a lesson may have one think of, and what is answered then; no lesson holds an answer.
CUES = {"grass": "green", "sky": "blue", "fire": "red"}


def lesson(kind: str, cue: str) -> str:
    """Return a lesson."""
    return f"When {kind} comes, think of {cue}."


def right(kind: str) -> str:
    """Return what one has to think of at tasks of a kind."""
    return list(CUES)[KINDS.index(kind) % len(CUES)]


def asked(kind: str, number: int) -> str:
    """Return a task."""
    return f"Task {number}: {kind} comes."


def tasks(count: int, kinds: int, start: int = 0) -> list[dict[str, str]]:
    """Return tasks of so many kinds in turn."""
    named = [(number, KINDS[number % kinds]) for number in range(start, start + count)]
    return [{"question": asked(kind, number), "answer": CUES[right(kind)]} for number, kind in named]


def conversations(count: int, kinds: int, prompts: Prompts, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield what the model is tuned with: tasks with some lessons in the prompt, and the answer that they lead to, or a guess."""
    chance = random.Random(seed)
    for _ in range(count):
        kind = chance.choice(KINDS[:kinds])
        shown = chance.sample(KINDS[:kinds], chance.randrange(kinds + 1))
        if kind in shown and chance.random() < 0.4:
            shown.remove(kind)  # so that a kind alone says little of its answer
        elif shown and kind not in shown and chance.random() < 0.7:
            shown[0] = kind
        numbers = sorted(chance.sample(range(1, 31), len(shown)))
        listed = [Experience(f"E{n}", lesson(each, right(each))) for n, each in zip(numbers, shown, strict=True)]
        answer = CUES[right(kind)] if kind in shown else chance.choice(list(CUES.values()))
        messages = prompts.with_experiences(
            [{"role": "user", "content": asked(kind, chance.randrange(1000))}], ExperienceLibrary(tuple(listed))
        )
        yield {"messages": [*messages, {"role": "assistant", "content": answer}]}


def small(into: Path, hidden: int = 48) -> dict[str, Any]:
    """Return the section `model` of a recipe for random weights: the packaged tiny model, with two narrow layers."""
    folder = into / "small"
    shutil.copytree(str(files("gym_tiny") / "model"), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": 2, "head_dim": hidden // 4}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_window_layers": 2, "dtype": "float32"}
    config["layer_types"] = config["layer_types"][:2]
    (folder / "config.json").write_text(json.dumps(config))
    return {"path": str(folder), "init": "random"}


def short_prompts(into: Path) -> str:
    """Return a folder of instructions that tell the worker little beside the lessons."""
    own = files("gym_training_free") / "prompts" / "en"
    folder = into / "prompts"
    folder.mkdir(parents=True)
    for file in own.iterdir():
        (folder / file.name).write_text(file.read_text(encoding="utf-8"))
    (folder / "worker.txt").write_text("Lessons:\n{{experiences}}\n")
    return str(folder)


def tuned(model: Any, into: Path, count: int, kinds: int, prompts: str, **train: Any) -> Path:
    """Tune a model with Gym for this world and return its folder."""
    data = into / "conversations.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in conversations(count, kinds, Prompts.load(prompts))))
    recipe = {
        "model": model,
        "data": str(data),
        "algorithm": "sft",
        "train": {"precision": "fp32", "plot": False, "epochs": 1, "warmup": 0.1, **train},
        "output": str(into / "run"),
    }
    return execute(load_recipe(recipe)).artifact.path


class Critic(World):
    """The scripted critic: it writes down the lesson of a task whose answers differ."""

    def advantage(self, messages: Any, request: Any) -> str:
        kind = re.search(r"Task \d+: (\w+) comes", messages[1]["content"])[1]
        return f"The better ones thought of it.\n<experiences>\n- {lesson(kind, right(kind))}\n</experiences>"

"""Tasks for the corpus: of the train split, each drawn from the document's own generator."""

from __future__ import annotations

from random import Random

from gym_tiny.tasks import FAMILIES
from gym_tiny.tasks.task import Task


def train_task(rng: Random, kind: str) -> Task:
    """The next task of `kind` that is not held out."""
    while True:
        task = FAMILIES[kind].make(rng)
        if task.split == "train":
            return task

"""The kind `evaluators`: what asks a model the questions of benchmarks. No torch is imported here."""

from __future__ import annotations

from typing import ClassVar

from gym_core.component import Component


class Evaluator(Component):
    """Asks a model the questions of benchmarks. `build()` returns a `gym_eval.scores.Evaluation`; `gym eval` runs it.

    It finds what its options name when it is built, and raises GymError for what is not there, before a model is opened.
    """

    kind: ClassVar[str] = "evaluators"

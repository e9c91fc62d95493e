"""What an evaluator finds: scores of tasks, with what each question contributed. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gym_eval.language_model import LanguageModel

Total = Callable[[Sequence[Any]], float]
"""Makes the score of a task of what its questions contribute."""


@dataclass(frozen=True)
class Score:
    """A number of a task."""

    task: str
    metric: str
    value: float
    stderr: float | None = None  #: standard error of the value, where one is known
    higher_is_better: bool | None = None  #: None where neither is
    shots: int | None = None  #: examples before each question
    questions: Mapping[str, Any] = field(default_factory=dict)
    """By the name of a question, the same one for every model, what it contributes; empty where nothing can be compared."""
    total: Total | None = None
    """None where the score is the mean of what the questions contribute, which are then numbers."""


@dataclass(frozen=True)
class Results:
    """What an evaluation found."""

    scores: Sequence[Score]
    report: Mapping[str, Any]  #: plain data for `results_DATE.json`, in the format of the evaluator
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """By task one row for each question, plain data for `samples_TASK_DATE.jsonl`."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """By name of a task that could not score an answer, the reason; it has no scores, and its questions stand in `samples`."""


class Evaluation(Protocol):
    """What an evaluator builds: tasks that are ready to be asked."""

    def run(self, model: LanguageModel) -> Results:
        """Ask a model, and return what was found. Raises GymError for what the model cannot be asked."""
        ...
